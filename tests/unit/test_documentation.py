# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the docs with the code."""

from __future__ import annotations

import ast
import math
import re
import shlex
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.splitter import parse_kv
from ansible.parsing.yaml.loader import AnsibleLoader

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import commands, error_pages
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    InternalError,
    NoSuchController,
    RolloutFailed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    TEMPLATE_OPTIONS,
    parse_request,
    with_kinds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.fleet import Fleet
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import causes, warnings

ROOT = Path(__file__).parents[2]
ERROR_PAGES = {page.stem: " ".join(page.read_text(encoding="utf-8").split())
               for page in sorted((ROOT / "docs" / "reference" / "errors").glob("*.md"))}
#: Functions that create errors, and the position of the argument `what`.
ERROR_FUNCTIONS = {"RolloutError": 0, "RolloutFailed": 0, "NoSuchController": 0, "failed": 2,
                   "as_error": 1}
CLASS_PAGES = {error_class.__name__: error_class.page
               for error_class in (RolloutFailed, NoSuchController)}


def fixed_texts(node):
    """Return the constant parts of a message."""
    if isinstance(node, ast.BinOp):
        return fixed_texts(node.left) + fixed_texts(node.right)
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return [part.value for part in parts
            if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def messages():
    for path in sorted((ROOT / "plugins" / "module_utils").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            function = (getattr(node.func, "id", getattr(node.func, "attr", ""))
                        if isinstance(node, ast.Call) else "")
            if function in ERROR_FUNCTIONS and len(node.args) > ERROR_FUNCTIONS[function]:
                message = node.args[ERROR_FUNCTIONS[function]]
                texts = [text.strip(" .;:,()") for text in fixed_texts(message)]
                if any(texts):
                    yield pytest.param(max(texts, key=len), page_of_error(path, function, node),
                                       id=f"{path.stem}:{node.lineno}")


def page_of_error(path, function, node):
    """Return the page of an error: from the argument `page`, the class, or the creating module."""
    pages = [keyword.value.value for keyword in node.keywords if keyword.arg == "page"]
    module = ".".join(path.relative_to(ROOT / "plugins").with_suffix("").parts)
    return pages[0] if pages else CLASS_PAGES.get(function) or error_pages.page_of(module)


@pytest.mark.parametrize("text, page", list(messages()))
def test_each_error_is_on_its_page(text, page):
    assert text in ERROR_PAGES[page]


def test_each_page_of_errors_has_a_module_or_a_class():
    pages = {page for _prefix, page in error_pages.PAGES} | {
        RolloutFailed.page, InternalError.page}
    assert pages == ERROR_PAGES.keys()


def test_page_lists_the_options_that_a_rollback_command_omits():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    text = " ".join(page.split()).partition("leaves out the options of the update itself:")[2]
    listed = set(re.findall("`([a-z_]+)`", text.partition(". ")[0]))
    omitted = {name for name, option in commands.OPTIONS.items()
               if State.UPDATED in option.states and State.ROLLED_BACK not in option.states}
    assert listed == omitted - {"container", *TEMPLATE_OPTIONS}


def test_rows_of_the_client_driven_planner_are_documented():
    row = re.compile(r"^ *(?:# )?(\|(?: (?:-|yes[^|]*) \|){2}.* \|)$", re.MULTILINE)
    coded_rows, documented = (row.findall((ROOT / path).read_text(encoding="utf-8"))
                              for path in ("plugins/module_utils/flows/client_driven/planner.py",
                                           "docs/concepts/how-it-works.md"))

    assert coded_rows == documented and len(coded_rows) > 10


def test_rows_of_the_handover_are_documented():
    row = re.compile(r'^ *(?:# |""")?(\|(?: (?:[^|]+ )?\|){4})', re.MULTILINE)
    page = (ROOT / "docs/concepts/handover.md").read_text(encoding="utf-8")
    section = page.partition("\n## ")[0]
    source = (ROOT / "plugins/module_utils/flows/handover.py").read_text(encoding="utf-8")
    coded_rows, documented = row.findall(source), row.findall(section)

    assert (coded_rows == documented[1:]
            and documented[0] == "| primary | successor | condition | step |"
            and len(coded_rows) > 10)


SERVER_DRIVEN_PAGES = {"server-driven": ["server_driven", "controller_revisions"],
                       "deployments": ["deployment"], "statefulsets": ["statefulset"],
                       "daemonsets": ["daemonset"]}


@pytest.mark.parametrize("page, planners", SERVER_DRIVEN_PAGES.items())
def test_rows_of_the_server_driven_planners_are_documented(page, planners):
    row = re.compile(r"^ *(?:# )?(\|(?: [^|-][^|]* \|){3})$", re.MULTILINE)
    documented = row.findall((ROOT / f"docs/concepts/{page}.md").read_text(encoding="utf-8"))
    coded_rows = [line for planner in planners for line in row.findall(
        (ROOT / f"plugins/module_utils/flows/{planner}/planner.py").read_text(encoding="utf-8"))]
    header = "| record | condition | step |"

    assert ([line for line in documented if line != header]
            == [line for line in coded_rows if line != header])
    assert header in documented and len(coded_rows) > 1


def test_rows_of_a_kind_stand_under_a_name_in_the_common_table():
    pages = [(ROOT / f"docs/concepts/{page}.md").read_text(encoding="utf-8")
             for page in SERVER_DRIVEN_PAGES]
    named_rows = " ".join(re.findall(r"\| a row of the kind under .*? applies \|", pages[0]))
    names = set(re.findall(r"\*([^*]+)\*", named_rows))

    assert names == {name for page in pages
                     for name in re.findall(r"^\*([^*]+)\*[^|]*:\n\n\| record", page, re.MULTILINE)}
    assert len(names) > 3


def test_rows_for_a_deployment_config_are_documented():
    row = re.compile(r"^ *(?:# )?(\|(?: [^|]+ \|){4})$", re.MULTILINE)
    page, planner, back = ((ROOT / path).read_text(encoding="utf-8") for path in (
        "docs/internals/migration.md", "plugins/module_utils/flows/migration/planner.py",
        "plugins/module_utils/flows/migration/back.py"))
    documented = row.findall(page.partition("\n### Row by row\n")[2].partition("\n## ")[0])

    assert (documented == row.findall(planner.partition("\n# A DeploymentConfig\n")[2])
            + row.findall(back) and len(documented) > 20)


def test_rows_of_a_traffic_split_are_documented():
    row = re.compile(r"^ *(?:# )?(\|(?: [^|-][^|]* \|){3})$", re.MULTILINE)
    page, planner = ((ROOT / path).read_text(encoding="utf-8") for path in (
        "docs/how-to/traffic-split.md", "plugins/module_utils/traffic/planner.py"))
    section = page.partition("\n## How a split resumes\n")[2].partition("\n## ")[0]
    header = "| record | condition | step |"
    documented = [line for line in row.findall(section) if line != header]

    assert documented == row.findall(planner) and len(documented) > 15


def test_rows_of_a_switch_are_documented():
    row = re.compile(r"^ *(?:# )?(\|(?: [^|-][^|]* \|){3})$", re.MULTILINE)
    page, planner = ((ROOT / path).read_text(encoding="utf-8") for path in (
        "docs/how-to/blue-green.md", "plugins/module_utils/traffic/switch.py"))
    headers = ("| record | condition | step |", "| state | condition | step |")
    documented = [line for line in row.findall(page) if line not in headers]

    assert documented == row.findall(planner) and len(documented) > 20


def test_warnings_and_causes_of_a_traffic_split_are_documented():
    page = (ROOT / "docs/how-to/traffic-split.md").read_text(encoding="utf-8")

    def as_documented(text):
        text = re.sub(r"\{(\w+_)?(kubectl|cluster)\}", "kubectl", text)
        return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), text)

    for title, rows in (
            ("Warnings", [(row.case, row.sentence) for row in warnings.ROWS]),
            ("When requests do not arrive",
             [(row.case, row.sentence, f"`{row.next_step}`") for row in causes.ROWS])):
        section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        documented = [[cell.strip("| ") for cell in row] for row in rows_of(section)]
        assert documented == [list(map(as_documented, row)) for row in rows] and len(rows) > 7


def test_rows_of_a_split_that_follows_an_update_are_documented():
    row = re.compile(r"^ *(?:# )?(\|(?: [^|-][^|]* \|){2,3})$", re.MULTILINE)
    page, decisions = ((ROOT / path).read_text(encoding="utf-8") for path in (
        "docs/how-to/traffic-split.md", "plugins/module_utils/traffic/follow.py"))
    section = page.partition("\n## How a split follows the update\n")[2].partition("\n## ")[0]
    headers = ("| the update | the route |", "| route | condition | step |")
    documented = [line for line in row.findall(section) if line not in headers]

    assert documented == row.findall(decisions) and len(documented) > 10


@pytest.mark.parametrize("source, page", [
    ("plugins/module_utils/release/batches.py", "docs/how-to/many-clusters.md"),
    ("plugins/module_utils/release/rollback_scope.py", "roles/image_bump/README.md"),
])
def test_decision_tables_of_the_roles_are_documented(source, page):
    rows, documented = (re.findall(r"^ *(\|.*\|)$", (ROOT / path).read_text(encoding="utf-8"),
                                   re.MULTILINE)
                        for path in (source, page))

    assert len(rows) >= 5 and "\n".join(rows) in "\n".join(documented)


def rows_of(table):
    return [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()
            if line.startswith("| ")][1:]


def test_comparison_refers_to_existing_tests():
    page = (ROOT / "docs/concepts/compared.md").read_text(encoding="utf-8")
    section = page.partition("\n## Argo Rollouts and Flagger\n")[2]
    compared_rows, test_rows = (rows_of(part.partition("\n## ")[0])
                                for part in section.split("\n## Which test runs it\n"))

    features = [feature.strip("| ")
                for feature, answer, *_cells in compared_rows if answer != "no"]
    assert [feature.strip("| ") for feature, _tests in test_rows] == features and len(features) > 15
    for feature, cell in test_rows:
        tests = re.findall(r"`(\S+)::(\w+)`", cell)
        assert tests, feature
        for file, name in tests:
            assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), (
                f"{feature}: {name}")


def test_error_messages_are_collected():
    assert len(list(messages())) > 70


def test_documented_error_probabilities_of_samples_are_exact():
    """The number of failed samples has a binomial distribution."""
    page = (ROOT / "docs" / "how-to" / "analysis.md").read_text(encoding="utf-8")
    slow_pass_probability, typical_fail_probability = (
        sum(math.comb(600, misses) * share**misses * (1 - share)**(600 - misses)
            for misses in counts)
        for share, counts in ((0.2, range(61)), (0.045, range(61, 601))))
    assert (f"passes with a probability of {slow_pass_probability:.0e}, "
            f"one in which 4.5% are fails with {typical_fail_probability:.0e}"
            ) in page.replace("\n", " ")
    rows = re.findall(r"^ +\| ([\d,]+) \| \d+ ± [\d.]+ \| (\d+) \| (\S+) \| (\S+) \| (\S+) \|$",
                      page, re.MULTILINE)
    assert len(rows) == 5
    for samples, max_failures, *documented in rows:
        count, limit = int(samples.replace(",", "")), int(max_failures)
        assert limit == count // 100
        binomial_terms = [
            [math.comb(count, failures) * share**failures * (1 - share)**(count - failures)
             for failures in range(count + 1)]
            for share in (0.05, 0.0003, 0.001)]
        error_probabilities = [sum(binomial_terms[0][:limit + 1]),
                               *(sum(terms[limit + 1:]) for terms in binomial_terms[1:])]
        assert documented == [f"{chance:.0e}" for chance in error_probabilities], samples


PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "roles").glob("*/README.md")),
         ROOT / "README.md"]
OPTIONS = {"rolling_update": task.UPDATE_OPTIONS, "rolling_update_info": task.INFO_OPTIONS,
           "migrate_to_deployment": task.MIGRATION_OPTIONS,
           "rollout_analysis": task.ANALYSIS_OPTIONS, "traffic_split": task.TRAFFIC_OPTIONS}
AD_HOC = re.compile(r"ansible localhost -m baton\.kubernetes\.(\w+) -a '([^'.]*)'")


def ad_hoc_examples():
    for page in PAGES:
        for number, (module, options) in enumerate(AD_HOC.findall(page.read_text("utf-8"))):
            yield pytest.param(module, options, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("module, options", list(ad_hoc_examples()))
def test_module_accepts_the_options_of_an_example(module, options):
    errors = ArgumentSpecValidator(OPTIONS[module]).validate(parse_kv(options)).error_messages

    assert not errors, shlex.quote(options)


def module_examples():
    for path in sorted((ROOT / "plugins" / "modules").glob("*.py")):
        source = ast.parse(path.read_text("utf-8"))
        (examples,) = (node.value.value for node in source.body if isinstance(node, ast.Assign)
                       and node.targets[0].id == "EXAMPLES")
        for example in yaml.load(examples, AnsibleLoader):
            for action, arguments in example.items():
                module = str(action).removeprefix("baton.kubernetes.")
                if module in OPTIONS:
                    yield pytest.param(module, arguments, id=f"{path.stem}: {example['name']}")


@pytest.mark.parametrize("module, arguments", list(module_examples()))
def test_an_example_of_a_module_is_a_valid_request(module, arguments):
    validation = ArgumentSpecValidator(OPTIONS[module]).validate(arguments)
    assert not validation.error_messages
    params = validation.validated_parameters
    if module in ("rolling_update", "migrate_to_deployment") and not params.get("src"):
        params = with_kinds({**params, "module": module}, Module(module))
        fleet = Fleet.from_params(params)
        for kind in fleet.kinds if fleet else [params.get("kind")]:
            parse_request({**params, "name": params.get("name") or "any", "kind": kind})


def test_each_module_has_examples():
    assert {param.values[0] for param in module_examples()} == OPTIONS.keys()


def role_examples():
    specs = sorted((ROOT / "roles").glob("*/meta/argument_specs.yml"))
    for page in [*PAGES, *specs]:
        text = page.read_text("utf-8")
        blocks = ([yaml.safe_load(text)["argument_specs"]["main"]["examples"]] if page in specs
                  else re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
        for block in blocks:
            document, *_more = yaml.load_all(block, AnsibleLoader)
            plays = ([play for play in document if "hosts" in play] if isinstance(document, list)
                     else [])
            for role in (role for play in plays for role in play.get("roles", ())):
                yield pytest.param(role, id=f"{page.relative_to(ROOT)}-{role['role']}")


@pytest.mark.parametrize("role", list(role_examples()))
def test_role_accepts_the_variables_of_an_example(role):
    name = role["role"].removeprefix("baton.kubernetes.")
    specs = yaml.safe_load((ROOT / "roles" / name / "meta"
                            / "argument_specs.yml").read_text("utf-8"))

    variables = {key for key in {**role, **role.get("vars", {})} if key.startswith(f"{name}_")}
    assert variables and variables <= set(specs["argument_specs"]["main"]["options"])


PAGES_WITH_LINKS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md",
                    *sorted((ROOT / "tests").glob("*/README.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors_of(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES_WITH_LINKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_resolve(page):
    for link in LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _hash, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_examples_of_the_canary_guide_are_in_the_readme():
    guide = (ROOT / "docs/docsite/rst/guide_canary.rst").read_text("utf-8")
    blocks = re.findall(r"\.\. code-block:: \w+\n\n((?:(?:  .*)?\n)+)", guide)
    readme = [line.strip() for line in (ROOT / "README.md").read_text("utf-8").splitlines()]

    assert len(blocks) == 2
    assert [line for block in blocks for line in block.splitlines() if line.strip() not in readme
            ] == []


def test_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").glob("*.md")),
                         ids=lambda page: page.stem)
def test_how_to_page_begins_with_code_or_a_command(page):
    lines = page.read_text("utf-8").splitlines()[:9]

    assert any(re.match(r"```|    \w|\|.*`ansible ", line) for line in lines)


def test_readme_or_an_overview_links_to_every_page():
    linked = {(ROOT / page).parent.joinpath(link.partition("#")[0]).resolve()
              for page in ("README.md", "docs/concepts/how-it-works.md", "docs/reference/errors.md")
              for link in LINK.findall((ROOT / page).read_text("utf-8"))}
    assert not {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - linked
