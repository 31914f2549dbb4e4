# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the report about a rollout on a real API server."""

from __future__ import annotations

from xml.etree import ElementTree

import ansible_cli
import html5lib
import pytest
from namespace import Namespace
from plays import CheckServer, Playbooks

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Update foo
      baton.kubernetes.rolling_update:
        _return_sizes: true
        name: foo
        namespace: {namespace}
        template: {{spec: {{containers: [{{name: web, image: "{image}"}}]}}}}
        failure_grace: 1
        on_failure: rollback
      register: update
      ignore_errors: true

    - name: Write the report
      ansible.builtin.include_role: {{name: baton.kubernetes.image_bump, tasks_from: report}}
      vars:
        image_bump_report: "{page}"
        image_bump_report_data:
          name: foo
          namespace: "{namespace}"
          image: "{image}"
          outcome: "{{{{ 'failed' if update is failed else 'updated' }}}}"
          message: "{{{{ update.msg }}}}"
          results: "{{{{ update.results }}}}"
"""


@pytest.fixture
def report(namespace: Namespace, ansible_environment, tmp_path):
    def report(image: str) -> ElementTree.Element:
        page = tmp_path / "report.html"
        (tmp_path / "play.yml").write_text(PLAY.format(namespace=namespace.name, image=image,
                                                       page=page))
        run = ansible_cli.run(["ansible-playbook", "play.yml"], cwd=tmp_path,
                              env=ansible_environment, capture_output=True,
                              text=True, timeout=180, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        return html5lib.HTMLParser(strict=True).parse(page.read_text(encoding="utf-8"))

    return report


def table(page, caption):
    (element,) = (element
                  for element in page.iter(f"{HTML}table")
                  if "".join(element.find(f"{HTML}caption").itertext()).startswith(caption))
    return [[" ".join("".join(cell.itertext()).split()) for cell in row]
            for row in element.find(f"{HTML}tbody")]


def test_report_of_an_update_has_steps_sizes_and_charts(namespace, report):
    namespace.make_rc(4)

    page = report("myimage:v2")

    steps = [row[2:] for row in table(page, "Changes in the cluster")]
    assert (["scale", "foo", "4 → 3 replicas"] in steps
            and steps[-1] == ["annotate", "foo", "updated"])
    sizes = table(page, "Sizes of foo and foo-")
    assert sizes[0][2:] == ["4", "4", "–", "–"] == sizes[-1][2:]
    assert any("handover" in row[0] for row in sizes)
    assert len([drawing for drawing in page.iter(f"{SVG}svg") if drawing.get("role") == "img"]) == 2
    text = "".join(page.itertext())
    assert ("4 to 5 were available, where 4 was the floor; there were at most 5, where 5 was the "
            "ceiling." in text)


@pytest.mark.full
def test_report_of_a_failure_shows_the_cause_and_escapes_text(namespace, report):
    namespace.make_rc(2)
    # The option `image` would refuse this text, so PLAY sets `template`.
    image = "evil<script>alert(1)</script>:v2-absent"

    page = report(image)

    assert not list(page.iter(f"{HTML}script")) and "".join(page.itertext()).count(image) > 2
    ((reason, pods, pod, _message),) = table(page, "Why the pods of foo")
    assert (reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName") and pods == "1"
            and pod.startswith("foo-"))
    assert table(page, "Sizes of foo")[-1][2:] == ["2", "2", "–", "–"], (
        "the update was not rolled back")


@pytest.mark.full
def test_report_of_the_role_shows_the_stage_and_the_failed_check(
        namespace, ansible_environment, tmp_path):
    namespace.make_rc(4)
    page = tmp_path / "page.html"
    with CheckServer(namespace) as check_server:
        check_server.failing_stages.add("50%")

        Playbooks(ansible_environment, tmp_path, check_server).image_bump(
            succeeds=False, image_bump_report=str(page)
        )

    tree = html5lib.HTMLParser(strict=True).parse(page.read_text(encoding="utf-8"))
    assert table(tree, "Checks after each stage")[0][0] == "10%"
    text = " ".join(" ".join(tree.itertext()).split())
    assert "rolled back" in text and "503" in text and "myimage:v2" in text


@pytest.fixture
def check_server(namespace):
    with CheckServer(namespace) as check_server:
        yield check_server


@pytest.mark.full
def test_rerun_without_changes_does_not_replace_the_report(
        namespace, ansible_environment, tmp_path, check_server):
    namespace.make_rc(2)
    page = tmp_path / "page.html"
    playbooks = Playbooks(ansible_environment, tmp_path, check_server)
    playbooks.image_bump(stages="", verify_tasks="", report="page.html")
    first_report = page.read_text(encoding="utf-8")

    playbooks.image_bump(stages="", verify_tasks="", report="page.html")

    assert (page.read_text(encoding="utf-8") == first_report
            and "2 of 2 replicas available" in first_report)
    playbooks.image_bump(stages="", verify_tasks="", report="page.html", image="myimage:v3")
    assert "myimage:v3" in page.read_text(encoding="utf-8")


@pytest.mark.full
def test_report_is_readable_only_by_its_owner_and_replaces_a_link(
    namespace, ansible_environment, tmp_path, check_server
):
    """The report contains logs, and another user may have created a link at its path."""
    namespace.make_rc(1)
    other_file, page = tmp_path / "other_file", tmp_path / "page.html"
    world_readable_page = tmp_path / "readable.html"
    other_file.write_text("mine")
    page.symlink_to(other_file)
    world_readable_page.touch(0o666)
    playbooks = Playbooks(ansible_environment, tmp_path, check_server)

    playbooks.image_bump(stages="", verify_tasks="", report=str(page))
    playbooks.image_bump(stages="", verify_tasks="", report=str(world_readable_page),
                         image="myimage:v3")

    assert other_file.read_text() == "mine" and not page.is_symlink()
    assert [path.stat().st_mode & 0o777 for path in (page, world_readable_page)] == [0o600, 0o600]
    assert not list(tmp_path.glob(".report-*"))


@pytest.mark.full
@pytest.mark.parametrize("image, outcome", [
    ("myimage:v2", "updated"),
    pytest.param("myimage:v2-crash", "rolled_back",
                 marks=pytest.mark.fake_nodes("a container that ends before its pod is ready")),
])
def test_unwritable_report_does_not_fail_the_update(
    namespace, ansible_environment, tmp_path, check_server, image, outcome
):
    namespace.make_rc(1)
    playbooks = Playbooks(ansible_environment, tmp_path, check_server)

    output = playbooks.image_bump(
        succeeds=outcome == "updated",
        image=image,
        failure_grace=1,
        stages="",
        verify_tasks="",
        report="no/such/folder/page.html",
    )

    assert (playbooks.report_data["outcome"] == outcome
            and f'"outcome": "{outcome}"' in output.partition("CUSTOM STATS")[2])
    assert "Warning: the report could not be written to" in output


@pytest.mark.full
def test_folder_in_place_of_the_report_does_not_fail_the_update(
        namespace, ansible_environment, tmp_path, check_server):
    namespace.make_rc(1)
    (tmp_path / "page.html").mkdir()

    output = Playbooks(ansible_environment, tmp_path,
                       check_server).image_bump(stages="", verify_tasks="", report="page.html")

    assert ("Warning: the report could not be written to" in output
            and not list(tmp_path.rglob(".report-*")))
