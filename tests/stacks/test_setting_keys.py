"""A setting is written once: its field has the key, the form in the file and the effect of a change; wording, planning and previews read it there."""

from pathlib import Path

from gemma_serving.contracts.settings_files import shipped_files
from gemma_serving.planning.settings.fields import block_fields, own_fields
from gemma_serving.planning.settings.paths import OF_A_STACK, question_fields, value_at
from gemma_serving.planning.settings.question import Facts
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.stacks.loading import from_file, read_yaml
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.settings_wording import settings_key, value_in_file

FILES = shipped_files(Path(__file__).resolve().parents[2])


def test_a_question_is_settings_and_facts_that_are_no_settings():
    settings = {field.path for field in own_fields(Settings)}
    assert settings.isdisjoint(Facts.__struct_fields__)
    assert settings.issuperset(OF_A_STACK)


def test_what_a_file_says_is_what_the_planner_is_asked_under_the_key_that_messages_name():
    compared: set[str] = set()
    for path in FILES:
        settings = from_file(path, project="my-project")
        question, config = to_question(settings), read_yaml(path.read_text())["config"]
        for field in question_fields().keys() - {"platform", "weights_mode"}:
            key = settings_key(field)
            given = _at(config, key)
            if given is not None and not isinstance(given, dict):
                quantity = question_fields()[field].quantity
                same = given if quantity is None else quantity.spell(quantity.read(given))
                assert value_in_file(field, value_at(question, field)) == same, (path.name, key)
                compared.add(key)
    assert {"tpu.acceleratorType", "cloudRun.gpu", "cloudRun.memory", "tpu.provisioning", "model"} <= compared


def _at(config, key):
    first, *rest = key.split(".")
    found = config.get(f"gemma-serving:{first}")
    for part in rest:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def test_a_setting_below_a_block_has_the_effect_of_the_block_unless_it_states_its_own():
    effects = {field.key: field.effect for field in block_fields(Settings)}
    assert effects["tpu.existingNetwork.network"] == effects["tpu.existingNetwork"] == "capacity"
    assert effects["tpu.existingNetwork.privateGoogleAccess"] == "nothing"
    assert effects["model"] is None
