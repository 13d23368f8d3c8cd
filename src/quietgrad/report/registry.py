"""A draft record for the registry of differential-privacy deployments.

The registry was proposed by Dwork, Kohli and Mulligan (2019). Its schema was developed by
Nanayakkara, Ghazi and Vadhan (arXiv 2509.13509); the names and values here are those of the
repository opendp/deployments-registry-data on 2026-07-15. A record of the registry is YAML, of
which this JSON is a part. Fields follow from the evidence or quote the user. What neither of them
says is marked, or left out where the schema takes no free text.
"""

import os
import re
from pathlib import Path
from typing import Any

from quietgrad.report.answers import best_bound
from quietgrad.report.evidence import ReportError
from quietgrad.report.statement import Statement
from quietgrad.runs.schema import parse_object, write_json

TO_ANSWER = "To be answered by the owner"
_TIER = 3
# Where the schema takes values of a list, or a date, which nothing here knows.
_LEFT_OUT = ("publication_date", "data_product_sector")


def deployment(statement: Statement) -> dict[str, Any]:
    """The record, as plain data."""
    answers = {answer.question: answer for answer in statement.answers}

    def said(question: str) -> str:
        answer = answers.get(question)
        if answer is None or answer.by == "owner":
            return TO_ANSWER
        return f"{answer.answer} (as stated by the user)" if answer.by == "user" else answer.answer

    stated, unit = statement.stated, [f"{item.title}: {item.text}" for item in statement.unit]
    bound = best_bound(statement.epsilons)
    holds, delta = statement.verdict.holds, statement.epsilons.delta
    epsilon = None if bound is None or not holds else bound.epsilon
    is_known = isinstance(epsilon, float) and epsilon < float("inf")
    parameters = {"epsilon": epsilon, "delta": delta} if is_known else {}
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", statement.title.lower()).strip("-") or "model",
        "status": "Draft",
        "tier": _TIER,
        "deployment": {
            "basic": {
                "name": statement.title,
                "data_curators": [stated.get("owner", TO_ANSWER)],
                "intended_use": stated.get("purpose", TO_ANSWER),
                "data_product_type": "Machine learning model",
                "data_product_region": TO_ANSWER,
                "description": _description(statement),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": stated.get("data", TO_ANSWER),
                "unprotected_quantities": "The settings of the training, the noise scale and the"
                " number of steps are public. Test figures come from other data.",
            },
            "privacy_loss": {
                "privacy_unit": stated.get("unit", _unit(statement)),
                "privacy_unit_details": " ".join(unit),
                **({"privacy_parameters": parameters} if parameters else {}),
                "privacy_parameters_details": f"{statement.verdict.headline}:"
                f" {statement.verdict.sentence}",
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": said("Who must be trusted with the records?"),
                "actors": TO_ANSWER,
                "release_type": "One release",
                "release_type_details": "The weights of every step are covered. Whether there will"
                f" be other releases from the same data: {TO_ANSWER.lower()}.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "access_type_details": said("Which questions can others put to the data?"),
            },
            "accounting": {
                "post_processing": "Any use of the trained weights.",
                "composition": said("Are all releases from the data added up?"),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": TO_ANSWER,
                "mechanisms": " ".join(
                    (
                        said("Which mechanism, and what bounds its sensitivity?"),
                        said("Where does the randomness come from?"),
                        said("What about floating-point numbers?"),
                        said("What about time and other side channels?"),
                        f"Library: quietgrad {_version(statement)}.",
                    )
                ),
                "justification": TO_ANSWER,
            },
            "administrative": {
                "sources": f"Privacy report of quietgrad, head {statement.head}",
                "notes": f"Draft made from the report of {statement.made_at}.",
                "registry_authors": [stated.get("contact", TO_ANSWER)],
            },
        },
    }


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write it as JSON; an older draft is replaced.

    Raises:
        ReportError: something else is there, such as the ledger, and stays.
    """
    if os.path.lexists(path) and not _is_draft(path):
        raise ReportError(
            f"{path} exists and is no draft of a record: it is not overwritten. Choose another file"
            " name for --registry, or move it away"
        )
    write_json(path, record)


def _is_draft(path: Path) -> bool:
    try:
        found = parse_object(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError):
        return False
    return found.get("status") == "Draft" and "url_slug" in found


def open_fields(statement: Statement) -> list[str]:
    """The fields that the owner has to answer."""

    def find(value: Any, name: str) -> list[str]:
        if isinstance(value, dict):
            return [each for key in value for each in find(value[key], key)]
        words = value[0] if isinstance(value, list) else value
        is_open = isinstance(words, str) and TO_ANSWER.lower() in words.lower()
        return [name] if is_open else []

    return [*find(deployment(statement), ""), *_LEFT_OUT]


def _description(statement: Statement) -> str:
    settings = statement.settings or {}
    parts = [f"Weights of {settings.get('model', 'a model')}, trained with DP-SGD"]
    if settings.get("dataset_size"):
        about = "about " if settings.get("size_is_secret") else ""
        parts.append(f"on {about}{settings['dataset_size']:,} {statement.units or 'records'}")
    return f"{' '.join(parts)}."


def _unit(statement: Statement) -> str:
    unit = (statement.evidence or {}).get("ledger", {}).get("unit")
    return "one record" if unit is None else f"one {unit['name']}, with all records"


def _version(statement: Statement) -> str:
    used = (statement.settings or {}).get("versions")
    return str(used.get("quietgrad")) if isinstance(used, dict) else "of an unknown version"
