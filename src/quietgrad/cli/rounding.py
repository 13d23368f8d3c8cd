"""Numbers for people and for JSON, as everywhere in the library."""

from quietgrad._rounding import json_number as json_number
from quietgrad._rounding import printed as printed
