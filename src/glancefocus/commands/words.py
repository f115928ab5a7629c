"""Words that several verbs of `gf` share."""

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for machines instead of a table.")]
