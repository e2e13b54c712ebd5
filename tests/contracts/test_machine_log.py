import pytest

from gemma_serving.contracts.machine_log import account_parts


@pytest.mark.parametrize(
    ("email", "parts"),
    [
        ("gemma-x@my-project.iam.gserviceaccount.com", ("my-project", "gemma-x")),
        ("gemma-x@my-project.example.com.iam.gserviceaccount.com\n", ("example.com:my-project", "gemma-x")),
        ("123-compute@developer.gserviceaccount.com", None),
        ("", None),
    ],
)
def test_a_service_account_names_its_project(email, parts):
    assert account_parts(email) == parts
