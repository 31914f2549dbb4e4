# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that the importable files of examples/ fit AWX and the playbooks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jinja2
import jinja2.sandbox
import pytest
import yaml

from ansible_collections.baton.kubernetes.plugins.lookup import release_request
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
AWX = EXAMPLES / "awx"
#: Types of defaults by type of question (SURVEY_TYPE_MAPPING in awx/main/models/mixins.py).
TYPES = {"text": str, "textarea": str, "password": str, "multiplechoice": str, "multiselect": str,
         "integer": int}


@pytest.fixture(params=["image_bump", "rollback"])
def survey_and_playbook(request):
    """Return a survey, and the text of its playbook with the names of the role's options."""
    files = [ROOT / "playbooks" / f"{request.param}.yml",
             ROOT / "playbooks" / "tasks" / f"{request.param}.yml"]
    playbook = "".join(file.read_text() for file in files if file.exists())
    playbook += "".join(f"{{{{ {name.removeprefix(request.param + '_')} }}}}\n"
                        for name in release_request.rolling_update_specs(request.param))
    return json.loads((AWX / f"{request.param}.survey.json").read_text()), playbook


def test_awx_accepts_the_survey(survey_and_playbook):
    """Apply the rules of JobTemplateSurveySpec._validate_spec_data in awx/api/views."""
    spec, _playbook = survey_and_playbook

    assert isinstance(spec["name"], str) and isinstance(spec["description"], str) and spec["spec"]
    variables = [question["variable"] for question in spec["spec"]]
    assert len(set(variables)) == len(variables)
    for question in spec["spec"]:
        assert isinstance(question["required"], bool) and isinstance(question["question_name"], str)
        assert question["default"] == "" or isinstance(question["default"], TYPES[question["type"]])
        assert all(isinstance(question[key], int | None) for key in ("min", "max"))
        if question["type"] == "multiplechoice":
            assert question["default"] in question["choices"].splitlines()


def test_the_playbook_accepts_every_variable_of_the_survey(survey_and_playbook):
    spec, playbook = survey_and_playbook

    assert [question["variable"] for question in spec["spec"]
            if not re.search(rf"{{{{.*\b{question['variable']}\b", playbook)] == []


def test_the_credential_type_injects_the_options_of_the_module():
    credential_type = json.loads((AWX / "kubeconfig.credential_type.json").read_text())
    fields = {field["id"] for field in credential_type["inputs"]["fields"]}
    injectors = credential_type["injectors"]

    spec = connection.ARGUMENT_SPEC
    names = {name for option in spec for name in (option, *spec[option].get("aliases", ()))}
    assert {variable.removeprefix("K8S_AUTH_").lower()
            for variable in injectors["env"]} <= names
    used_fields = set(re.findall(r"{{ (\w+)", json.dumps(injectors))) - {"tower"}
    assert used_fields == fields >= set(credential_type["inputs"]["required"])


def test_the_awx_project_imports_each_playbook():
    imports = {path.stem: yaml.safe_load(path.read_text())[0]["ansible.builtin.import_playbook"]
               for path in EXAMPLES.glob("*.yml")
               if "ansible.builtin.import_playbook" in path.read_text()}

    assert imports == {path.stem: f"baton.kubernetes.{path.stem}"
                       for path in (ROOT / "playbooks").glob("*.yml")}


class UnsafeTagLoader(yaml.SafeLoader):
    """Loader that reads values with the tag !unsafe as text."""


UnsafeTagLoader.add_constructor("!unsafe", UnsafeTagLoader.construct_scalar)
#: For each variable of infra.aap_configuration, the keys of its objects.
KEYS = {
    "controller_execution_environments": {"name", "image"},
    "controller_projects": {"name", "organization", "scm_type", "scm_url", "scm_update_on_launch",
                            "default_environment"},
    "controller_inventories": {"name", "organization", "variables"},
    "controller_hosts": {"name", "inventory", "variables"},
    "controller_notifications": {"name", "organization", "notification_type",
                                 "notification_configuration", "messages"},
    "controller_templates": {"name", "organization", "project", "playbook", "inventory",
                             "execution_environment", "credentials", "survey_enabled",
                             "survey_spec", "notification_templates_success",
                             "notification_templates_error"},
    "controller_workflows": {"name", "organization", "ask_variables_on_launch",
                             "simplified_workflow_nodes"},
}


@pytest.fixture
def configuration():
    return yaml.load((AWX / "controller.yml").read_text(), UnsafeTagLoader)


def test_the_configuration_has_only_keys_of_infra_aap_configuration(configuration):
    (credential_type,) = configuration.pop("controller_credential_types")

    assert "kubeconfig.credential_type.json" in credential_type
    assert configuration.keys() == KEYS.keys()
    assert {variable: {key for item in items for key in item} - KEYS[variable]
            for variable, items in configuration.items()} == {variable: set() for variable in KEYS}


def test_the_configuration_refers_to_its_own_objects(configuration):
    names = {variable: {item["name"] for item in items} for variable, items in configuration.items()
             if variable != "controller_credential_types"}

    for template in configuration["controller_templates"]:
        assert (EXAMPLES / template["playbook"]).is_file()
        (survey,) = re.findall(r"/(\w+\.survey\.json)", template["survey_spec"])
        assert (AWX / survey).is_file() and survey.startswith(Path(template["playbook"]).stem)
        assert template["project"] in names["controller_projects"]
        assert template["inventory"] in names["controller_inventories"]
        assert template["execution_environment"] in names["controller_execution_environments"]
        assert {*template["notification_templates_success"],
                *template["notification_templates_error"]} <= names["controller_notifications"]


@pytest.mark.parametrize("artifacts", [{}, {"msg": 'foo: "v2" is on\nall 4 pods {{ 1 }}'}])
@pytest.mark.parametrize("event", ["success", "error"])
def test_a_notification_is_json_with_the_outcome(configuration, event, artifacts):
    (notification,) = configuration["controller_notifications"]
    job = {"name": "Image bump", "status": "successful", "job_explanation": "", "artifacts":
           artifacts}
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)

    text = environment.from_string(notification["messages"][event]["body"]).render(
        job=job, url="https://awx.example.com/#/jobs/1")

    assert artifacts.get("msg", "") in json.loads(text)["text"]


def test_the_approval_workflow_runs_existing_playbooks_and_rolls_back_if_not_approved(
        configuration):
    playbooks = {template["name"]: template["playbook"]
                 for template in configuration["controller_templates"]}
    (workflow,) = configuration["controller_workflows"]
    nodes = {node["identifier"]: node for node in workflow["simplified_workflow_nodes"]}

    jobs = {name: node for name, node in nodes.items() if "unified_job_template" in node}
    assert {name: playbooks[node["unified_job_template"]] for name, node in jobs.items()} == {
        "canary": "image_bump.yml", "rest": "image_bump.yml", "back": "rollback.yml"}
    questions = {question["variable"]
                 for question in json.loads((AWX / "image_bump.survey.json").read_text())["spec"]}
    assert all(node.get("extra_data", {}).keys() <= questions for node in jobs.values())
    next_nodes = {(name, edge): node[edge] for name, node in nodes.items()
                  for edge in ("success_nodes", "failure_nodes", "always_nodes") if edge in node}
    assert next_nodes == {("canary", "success_nodes"): ["approve"],
                          ("approve", "success_nodes"): ["rest"],
                          ("approve", "failure_nodes"): ["back"]}
    assert nodes["approve"]["approval_node"]["timeout"] > 0


def test_the_execution_environment_needs_only_kubernetes_and_pyyaml():
    dependencies = yaml.safe_load(
        (ROOT / "meta" / "execution-environment.yml").read_text())["dependencies"]
    lines = (ROOT / dependencies["python"]).read_text().splitlines()
    packages = {re.split(r"[<>=!]", line)[0] for line in lines if not line.startswith("#")}

    assert packages == {"kubernetes", "PyYAML"} and "system" not in dependencies


@pytest.mark.parametrize("name, pinned_by", [
    ("execution", ("requirements.txt", "tests/requirements.txt")),
    ("decision", ("tests/events/requirements.txt",)),
])
def test_an_environment_has_the_tested_versions(name, pinned_by):
    definition = yaml.safe_load((EXAMPLES / f"{name}-environment.yml").read_text())
    assert re.fullmatch(r"[a-z./\d-]+@sha256:[0-9a-f]{64}",
                        definition["images"]["base_image"]["name"])
    dependencies = definition["dependencies"]
    pins = {line.split()[0] for path in pinned_by
            for line in (ROOT / path).read_text().splitlines() if not line.startswith("#")}
    programs = {dependencies[program]["package_pip"]
                for program in ("ansible_core", "ansible_runner")}
    assert {*dependencies["python"]} | programs <= pins


def test_project_and_environments_get_the_collection_from_one_place():
    requirements = "collections/requirements.yml"  # AWX reads only this path in a project

    for name in ("execution", "decision"):
        definition = yaml.safe_load((EXAMPLES / f"{name}-environment.yml").read_text())
        assert definition["dependencies"]["galaxy"] == requirements
    assert len(yaml.safe_load((EXAMPLES / requirements).read_text())["collections"]) == 1


RULEBOOKS = {"run_playbook": ROOT / "extensions/eda/rulebooks/rollback.yml",
             "run_job_template": EXAMPLES / "rulebooks/rollback.yml"}


def ruleset_of(path):
    (ruleset,) = yaml.safe_load(path.read_text())
    return ruleset


@pytest.mark.parametrize("action", RULEBOOKS)
def test_the_rulebook_passes_known_variables_and_no_templates(action):
    (rule,) = ruleset_of(RULEBOOKS[action])["rules"]
    arguments = rule["action"][action]
    extra_vars = arguments.get("job_args", arguments)["extra_vars"]

    playbook = (ROOT / "playbooks/rollback.yml").read_text()
    assert all(re.search(rf"{{{{.*\b{variable}\b", playbook) for variable in extra_vars)
    labels = {label for value in extra_vars.values()
              for label in re.findall(r"labels\.(\w+)", value)}
    patterns = dict(re.findall(r'\blabels\.(\w+) is match\("(.*?)"\)', rule["condition"]))
    assert labels == set(patterns) and labels and " or " not in rule["condition"]
    assert not [pattern for pattern in patterns.values()
                if re.match(pattern, "{{ lookup('pipe', 'id') }}") or re.match(pattern, "a{{ 1 }}")]


def test_the_rulebooks_differ_in_the_action_alone():
    rulesets = [ruleset_of(path) for path in RULEBOOKS.values()]
    for ruleset in rulesets:
        ruleset["rules"][0].pop("action")

    assert rulesets[0] == rulesets[1]


def test_the_page_about_alerts_shows_the_rule_of_prometheus():
    page = (ROOT / "docs/how-to/alerts.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (group,) = yaml.safe_load((EXAMPLES / "monitoring/rules.yml").read_text())["groups"]

    assert yaml.safe_load(example) == group["rules"]
