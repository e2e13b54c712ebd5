"""The Logging query language, as Google's clients write it."""

import pytest

from localcloud.rest.errors import CloudError
from localcloud.rest.filters import matcher

ENTRY = {
    "logName": "projects/p/logs/run.googleapis.com%2Fvarlog%2Fsystem",
    "resource": {
        "type": "cloud_run_revision",
        "labels": {"service_name": "gemma", "location": "us-east4", "revision_name": "gemma-00001-abc"},
    },
    "labels": {"k8s.io/app": "x"},
    "severity": "WARNING",
    "timestamp": "2026-11-20T10:00:00.000001Z",
    "textPayload": "Container called exit(1).",
}
PRINTED = {**ENTRY, "logName": "projects/p/logs/run.googleapis.com%2Fstderr", "textPayload": 'He said "no"'}
del PRINTED["severity"]

SERVICES_LOGS_READ = (
    "resource.type = cloud_run_revision \n AND resource.labels.service_name = gemma \n AND resource.labels.location = us-east4 \n "
    'AND severity >= DEFAULT \n AND timestamp>="2026-11-19T18:21:12.467106Z"'
)
"""`gcloud run services logs read gemma --region=us-east4`, as gcloud 528 sends it."""


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("", True),
        # gcloud logging read
        ('timestamp>="2026-11-19T16:23:11.942953Z" AND resource.type=cloud_run_revision', True),
        ('timestamp>="2026-11-20T16:23:11.942953Z" AND resource.type=cloud_run_revision', False),
        (SERVICES_LOGS_READ, True),
        # The filter of the link in Cloud Run's own error
        (
            'resource.type="cloud_run_revision"\nresource.labels.service_name="gemma"\nresource.labels.revision_name="gemma-00001-abc"',
            True,
        ),
        # google-cloud-logging adds the time without a colon in the zone
        ('severity>=ERROR AND timestamp>="2026-11-19T10:00:00.000000+0000"', False),
        ('severity>=WARNING AND timestamp>="2026-11-19T10:00:00.000000+0000"', True),
        ('logName="projects/p/logs/run.googleapis.com%2Fvarlog%2Fsystem"', True),
        ('logName:"run.googleapis.com"', True),
        (
            'logName=("projects/p/logs/run.googleapis.com%2Fstdout" OR "projects/p/logs/run.googleapis.com%2Fvarlog%2Fsystem")',
            True,
        ),
        (r'textPayload=~"^Container called exit\([^0]+\)\.$"', True),
        (r'textPayload!~"exit\("', False),
        ("textPayload:CONTAINER", True),
        ("NOT textPayload:exit", False),
        ('-resource.labels.service_name:"other"', True),
        ("severity=ERROR OR severity=WARNING AND resource.type=global", False),
        ("(severity=ERROR OR resource.type=cloud_run_revision) severity!=INFO", True),
        ("jsonPayload.message:x", False),
        ("jsonPayload.message!=x", False),
        ("NOT jsonPayload.message=x", True),
        ('labels."k8s.io/app"=x', True),
        ("labels:*", True),
        ('"called exit"', True),
        ("nothing", False),
    ],
)
def test_an_entry_matches_as_in_cloud_logging(expression, matches):
    assert matcher(expression)(ENTRY) is matches


def test_an_entry_without_severity_has_the_default_one():
    assert matcher("severity>=DEFAULT")(PRINTED)
    assert not matcher("severity>=INFO")(PRINTED)
    assert matcher(r'textPayload="He said \"no\""')(PRINTED)


@pytest.mark.parametrize(
    "expression",
    ["resource.type=", "(severity=ERROR", "severity=ERROR)", "AND", "a=(b c)", 'x=~"("', 'x="a', 'x="a" b" AND y=1'],
)
def test_what_cannot_be_read_is_refused(expression):
    with pytest.raises(CloudError, match="Unparseable filter") as refused:
        matcher(expression)
    assert refused.value.code == 400
