# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and validate the manifest with the desired template (the options `definition` and `src`)."""

from __future__ import annotations

import contextlib
import json
import typing as t

from .errors import RolloutError
from .fields import Json, pairs
from .kinds import Kind, kind_named


def kind_of_definition(options: Json) -> Kind | None:
    """Return the kind of the first document with a kind; None if missing or unknown.

    A manifest that cannot be read has no kind: read_definition() raises the error for an update,
    and a rollback needs no manifest.
    """
    with contextlib.suppress(RolloutError):
        for document in _documents(*_source_and_content(options)):
            if isinstance(document, dict) and isinstance(document.get("kind"), str):
                return kind_named(document["kind"])
    return None


def read_definition(options: Json, kind: Kind) -> Json | None:
    """Return the manifest from src or definition, or None if both are missing.

    options: src_content is the text of the file src, if already read. Raises RolloutError.
    """
    source, content = _source_and_content(options)
    if content is None:
        return None
    definition = _single_document(source, content, kind)
    metadata, spec = definition.get("metadata") or {}, definition.get("spec") or {}
    template = spec.get("template") if isinstance(spec, dict) else None
    if (not isinstance(metadata, dict) or not isinstance(template, dict)
            or not isinstance(template.get("spec"), dict)):
        raise RolloutError(f"{source} has no pod template (spec.template.spec)")
    refuse_non_json(source, definition)
    labels, selector = _labels_and_selector(source, kind, metadata, spec, template)
    if (not isinstance(metadata.get("name", ""), str)
            or not isinstance(metadata.get("namespace") or "", str)):
        raise RolloutError(f"name and namespace of {source} must be strings")
    if not labels and not selector:
        raise RolloutError(f"{source} has no labels in its pod template")
    if any(labels.get(key) != value for key, value in selector.items()):
        raise RolloutError(
            f"the selector {pairs(selector)} in {source} does not match the labels of its template "
            f"({pairs(labels)})"
        )
    return {**definition, "metadata": metadata, "spec": spec}


def _source_and_content(options: Json) -> tuple[str, t.Any]:
    """Return the option with the manifest, and its text or document. Raises RolloutError."""
    if not options.get("src"):
        return "definition", options.get("definition")
    return "src", (options["src_content"] if "src_content" in options
                   else _read(options["src"]))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise RolloutError(f"src {path} cannot be read", why=str(error)) from error


def _documents(source: str, content: t.Any) -> list[t.Any]:
    """Return the documents. Raises RolloutError.

    content: YAML, a parsed document or a list of parsed documents.
    """
    if not isinstance(content, str):
        return content if isinstance(content, list) else [content]
    import yaml  # ansible-test imports this module without PyYAML.

    try:
        return [document for document in yaml.safe_load_all(content) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # str(error) would also quote the text, which may be from a vault.
        mark = getattr(error, "problem_mark", None)  # Lines count from 0.
        problem = getattr(error, "problem", None) or type(error).__name__
        why = f"line {mark.line + 1}: {problem}" if mark else problem
        raise RolloutError(f"{source} is not valid YAML", why=why) from None


def _single_document(source: str, content: t.Any, kind: Kind) -> Json:
    """Return the manifest, which must be the only document. Raises RolloutError."""
    documents = _documents(source, content)
    if len(documents) != 1:
        raise RolloutError(f"{source} contains {len(documents)} documents: it must be exactly one "
                           f"{kind}")
    definition = documents[0]
    actual_kind = (definition.get("kind") if isinstance(definition, dict)
                   else type(definition).__name__)
    if not isinstance(definition, dict) or actual_kind != kind:
        raise RolloutError(f"{source} is of kind {actual_kind}: it must be a {kind}")
    return definition


def _labels_and_selector(source: str, kind: Kind, metadata: Json, spec: Json,
                         template: Json) -> tuple[Json, Json]:
    """Return (labels of the template, labels in the selector). Raises RolloutError."""
    pod_metadata = template.get("metadata") or {}
    labels = pod_metadata.get("labels") if isinstance(pod_metadata, dict) else pod_metadata
    selector = spec.get("selector")
    if isinstance(selector, dict):
        selector = kind.labels(selector)
    mappings = {"metadata.labels": metadata.get("labels"),
                "metadata.annotations": metadata.get("annotations"),
                "spec.selector": selector, "spec.template.metadata.labels": labels}
    for field, value in mappings.items():
        is_string_mapping = isinstance(value, dict) and all(
            isinstance(text, str) for text in value.values())
        if value is not None and not is_string_mapping:
            raise RolloutError(f"{field} in {source} must map strings to strings")
    return labels or {}, selector or {}


def refuse_non_json(option: str, value: t.Any) -> t.Any:
    """Return the value. Raises RolloutError for values that are not JSON, such as dates or sets."""
    try:
        json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RolloutError(f"{option} cannot be sent to the API server", why=str(error)) from error
    return value
