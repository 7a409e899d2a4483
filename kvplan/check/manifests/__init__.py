"""Launch commands in deployment files: Kubernetes, Compose, scripts, units, batch jobs, notes. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvplan.check.manifests.dockerfile import read_dockerfile
from kvplan.check.manifests.findings import find_mistakes
from kvplan.check.manifests.markdown import read_markdown
from kvplan.check.manifests.reading import AcceleratorReading, Finding, FoundCommand, ManifestReading
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.scripts import read_sbatch, read_shell
from kvplan.check.manifests.source import Source, open_source
from kvplan.check.manifests.systemd import is_unit, read_unit
from kvplan.check.manifests.yaml_files import is_template, kind_of, read_yaml_text, refuse_template
from kvplan.errors import InputError
from kvplan.files import compose_yaml

__all__ = ["AcceleratorReading", "Finding", "FoundCommand", "ManifestReading", "read_manifest"]


def read_manifest(path: Path, *, variables: Mapping[str, str] | None = None) -> ManifestReading:
    """Read every launch command in one file, with what can't be known and what is wrong already.

    `variables` are the user's `--set VAR=value`: they fill what nothing in the file sets. Files that the commands name
    are read when they lie in the same repository. Raises InputError for a file that can't be read, an empty one, a
    Helm template, and text that is broken where its place can be named.
    """
    source = open_source(path, variables or {})
    if not source.text.strip():
        raise InputError(f"{path}: found an empty file, expected one with launch commands")
    kind, result = _read(source)
    commands = tuple(replace(found, group=found.group or found.place) for found in result.commands)
    findings = [*result.findings, *find_mistakes(source, commands)]
    unique = {(finding.rule, finding.line, finding.text): finding for finding in findings}
    notes = tuple(dict.fromkeys(result.notes))
    hints, files = tuple(result.hints), tuple(sorted(source.read))
    return ManifestReading(str(path), kind, commands, tuple(unique.values()), notes, hints, files)


def _read(source: Source) -> tuple[str, Result]:
    name, suffix = source.path.name.lower(), source.path.suffix.lower()
    if suffix in (".md", ".markdown", ".mdx", ".rst"):
        return "Markdown", read_markdown(source)
    if suffix in (".sbatch", ".slurm") or (suffix not in (".yaml", ".yml") and "\n#SBATCH" in f"\n{source.text}"):
        return "Slurm batch script", read_sbatch(source)
    if suffix in (".service", ".container") or (suffix in ("", ".conf", ".unit") and is_unit(source.text)):
        return "systemd unit", read_unit(source)
    if name.startswith(("dockerfile", "containerfile")) or suffix == ".dockerfile":
        return "Dockerfile", read_dockerfile(source)
    if suffix in (".sh", ".bash", ".zsh", ".ksh", ".command", ".env") or source.text.startswith("#!"):
        if is_template(source.text) and "{{" in source.text:
            raise refuse_template(source.name, source.text)
        return "shell script", read_shell(source, source.text)
    if suffix in (".yaml", ".yml", ".json", ".tpl"):
        return _yaml_kind(source), read_yaml_text(source, source.text)
    return _unnamed(source)


def _yaml_kind(source: Source) -> str:
    try:
        return kind_of(compose_yaml(source.text, source.name))
    except InputError:
        return "YAML"


def _unnamed(source: Source) -> tuple[str, Result]:
    """A file whose name says nothing: a mapping is YAML, anything else a script."""
    try:
        nodes = compose_yaml(source.text, source.name)
    except InputError:
        return "shell script", read_shell(source, source.text)
    if any(isinstance(node.value, (dict, list)) for node in nodes):
        return kind_of(nodes), read_yaml_text(source, source.text)
    return "shell script", read_shell(source, source.text)
