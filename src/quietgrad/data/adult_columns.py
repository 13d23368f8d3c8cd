"""What is known of the columns of the Adult census data without its rows.

The lists are those of ``adult.names``, in its order, with "?" for an unknown value at the end of
the three columns that can have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

# The description calls numbers "continuous" and gives no ranges: these are round figures from
# outside of the data, not the largest values in it.
LARGEST: Mapping[str, float] = {
    "age": 100,
    "fnlwgt": 250e6,  # how many people a row stands for: at most all that lived in the country
    "education-num": 16,  # as many as there are kinds of education
    "capital-gain": 1e6,
    "capital-loss": 1e6,
    "hours-per-week": 7 * 24,
}
LOGARITHMIC = ("fnlwgt", "capital-gain", "capital-loss")

CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "workclass": tuple(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked ?".split()
    ),
    "education": tuple(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool".split()
    ),
    "marital-status": tuple(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse".split()
    ),
    "occupation": tuple(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces ?".split()
    ),
    "relationship": tuple("Wife Own-child Husband Not-in-family Other-relative Unmarried".split()),
    "race": tuple("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black".split()),
    "sex": ("Female", "Male"),
    "native-country": tuple(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands ?".split()
    ),
}

IN_FILE_ORDER = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
).split()


def scaled(value: float, column: str) -> float:
    """A number in ``[0, 1]``; one beyond the largest that is expected counts as that one."""
    within = min(max(value, 0.0), LARGEST[column])
    if column in LOGARITHMIC:
        return math.log1p(within) / math.log1p(LARGEST[column])
    return within / LARGEST[column]
