"""Names keep within each service's limits and stay unique."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.contracts.naming import Names, NamingError

STACK_NAMES = st.from_regex(r"\A[a-z]([a-z0-9-]{0,28}[a-z0-9])?\Z")
PROJECTS = st.from_regex(r"\A[a-z][a-z0-9-]{4,28}[a-z0-9]\Z")


@given(project=PROJECTS, stack=STACK_NAMES)
def test_every_name_keeps_within_its_services_limits(project, stack):
    names = Names(project=project, stack=stack)
    assert re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", names.account_id)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", names.bucket)
    assert len(names.base) <= 63


@given(project=PROJECTS, one=STACK_NAMES, other=STACK_NAMES)
def test_two_stacks_never_share_a_name(project, one, other):
    first, second = Names(project=project, stack=one), Names(project=project, stack=other)
    assert (first.account_id == second.account_id) is (one == other)
    assert (first.bucket == second.bucket) is (one == other)


@pytest.mark.parametrize("stack", ["My", "a_b", "-a", "a-", "", "a" * 31, "1a"])
def test_a_name_that_no_service_takes_is_refused(stack):
    with pytest.raises(NamingError, match="Use up to 30 lower-case letters"):
        Names(project="my-project", stack=stack)
