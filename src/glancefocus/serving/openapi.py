"""The content of /openapi.json beyond the addresses: the forms of requests and answers, with examples."""

from typing import Any

PATHS = ("/", "/predict", "/info", "/stats", "/metrics", "/health/live", "/health/ready", "/reload", "/openapi.json")
DESCRIPTION = (
    "Classifies pictures by looks: first a glance at the whole picture, then closer looks at parts of it, until the score of the "
    "answer is above a threshold."
)

Schema = dict[str, Any]
_WHITE_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAIAQAAAADsdIMmAAAADUlEQVR42mP4z8SADAEPcQEOdvOI0AAAAABJRU5ErkJggg=="
"""A white picture of 8 x 8 pixels in base64, so that the example can be sent as it is."""
_NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, and what to do."}},
    "example": {"error": "cat.jpg is empty. Save or download it again."},
}
_SHARE: Schema = {
    "type": "object",
    "required": ["label", "confidence"],
    "properties": {"label": {"type": "string"}, "confidence": {"type": "number", "minimum": 0, "maximum": 1}},
}
_EXAMPLE: Schema = {
    "file": "road.jpg",
    "label": "50",
    "confidence": 0.97,
    "looks": 2,
    "sure": True,
    "threshold": 0.9,
    "where": [[0.41, 0.73]],
    "boxes": [[310, 95, 406, 191]],
    "patch_px": [96],
    "views": ["96"],
    "cost_macs": 10300000,
    "top": [{"label": "50", "confidence": 0.97}],
    "notes": [],
    "budget_macs": 12000000.0,
}
_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "description": "Name of the file, as it was sent."},
        "error": {"type": "string", "description": "Why this picture could not be read; the other fields are missing."},
        "label": {"type": "string"},
        "confidence": {"type": "number"},
        "looks": {"type": "integer", "description": "Number of looks, the glance included."},
        "sure": {"type": "boolean", "description": "The score was above its threshold."},
        "threshold": {"type": ["number", "null"]},
        "where": {"type": "array", "items": _NUMBERS, "description": "Place of each focus look, (y, x) in [0, 1]."},
        "boxes": {
            "type": "array",
            "items": _NUMBERS,
            "description": "Left, top, right and bottom of each focus look, in pixels of the picture.",
        },
        "patch_px": _NUMBERS,
        "views": {"type": "array", "items": {"type": "string"}},
        "cost_macs": {"type": "integer", "description": "Multiply-adds that were computed for this picture."},
        "top": {"type": "array", "items": _SHARE},
        "notes": {"type": "array", "items": {"type": "string"}},
        "budget_macs": {"type": ["number", "null"], "description": "Budget that was in force."},
        "steps": {"type": "array", "items": _SHARE, "description": "Answer after each look; with steps=true only."},
    },
    "required": ["file"],
}
_OPTION_SCHEMAS: dict[str, tuple[Schema, str]] = {
    "bundle": ({"type": "string"}, "Name of the bundle. Default: the first one of the server."),
    "topk": (
        {"type": "integer", "minimum": 1, "maximum": 1_000_000},
        "Number of likeliest classes to list. Default: 1.",
    ),
    "budget_macs": (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1e18},
        "Mean multiply-adds that a picture may cost; the thresholds come from the bundle's curve.",
    ),
    "deadline_ms": (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9},
        "Time limit from the arrival of the request; then the last finished look gives the answer. The glance is always taken.",
    ),
    "thresholds": (
        {"type": "array", "items": {"type": "number"}},
        "The score above which a picture stops after each look, in a form or an address as 0.9,0.8.",
    ),
    "looks": ({"type": "integer", "minimum": 1, "maximum": 64}, "Take exactly this many looks."),
    "steps": ({"type": "boolean"}, "Also send the answer after each look."),
}
_OPTIONS = {name: {**schema, "description": text} for name, (schema, text) in _OPTION_SCHEMAS.items()}
_PICTURE: Schema = {"type": "string", "format": "binary"}
PREDICT: Schema = {
    "parameters": [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": text,
            "schema": schema,
            **({"style": "form", "explode": False} if schema["type"] == "array" else {}),
        }
        for name, (schema, text) in _OPTION_SCHEMAS.items()
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {"files": {"type": "array", "items": _PICTURE}, **_OPTIONS},
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "additionalProperties": False,
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {
                                    "data": {"type": "string", "format": "byte", "description": "In base64."},
                                    "path": {"type": "string", "description": "With gf serve --allow-paths only."},
                                    "name": {"type": "string", "maxLength": 500},
                                },
                            },
                        },
                        **_OPTIONS,
                    },
                },
                "example": {"images": [{"data": _WHITE_PNG, "name": "road.png"}], "topk": 3},
            },
            "image/jpeg": {"schema": _PICTURE},
            "image/png": {"schema": _PICTURE},
            "application/octet-stream": {"schema": _PICTURE},
        },
    },
}


def _answered(description: str, schema: Schema, kind: str = "application/json") -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _refused(*statuses: int) -> dict[int | str, Schema]:
    return {status: _answered(_REASONS[status], _ERROR) for status in statuses}


_REASONS = {
    401: "The token is missing or wrong.",
    403: "This is not allowed on this server.",
    404: "There is no bundle of this name.",
    408: "The request was not received in time.",
    413: "The request is too large, or has too many pictures.",
    415: "The content type is not supported.",
    422: "An option is wrong, or no picture can be read.",
    503: "The server is loading, stopping or busy. Retry-After has the seconds to wait before the next try.",
}
PREDICT_RESPONSES: dict[int | str, Schema] = {
    200: {
        "description": "An answer for each picture, in the form of `gf predict --json`.",
        "content": {"application/json": {"schema": {"type": "array", "items": _ANSWER}, "example": [_EXAMPLE]}},
    },
    **_refused(401, 403, 404, 408, 413, 415, 422, 503),
}
_STATUS: Schema = {"type": "object", "properties": {"status": {"type": "string"}}}
TOKEN_RESPONSES = _refused(401)
LIVE_RESPONSES: dict[int | str, Schema] = {200: _answered("The server runs.", _STATUS)}
READY_RESPONSES: dict[int | str, Schema] = {200: _answered("The server can answer.", _STATUS), **_refused(503)}
METRICS_RESPONSES: dict[int | str, Schema] = {
    200: _answered("Metrics.", {"type": "string"}, "text/plain"),
    **_refused(401),
}
RELOAD_RESPONSES = _refused(401, 403, 422)
