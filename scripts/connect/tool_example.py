"""A tool to try tool calls with: the current time of a city. It runs on this machine, reads the clock and changes nothing."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from contracts.fields import json_object

_NAME: Final = "current_time"
TOOL: Final[Mapping[str, object]] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Get the current date and time in a city or a time zone",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "City or IANA time zone, such as Europe/Paris"}},
            "required": ["place"],
        },
    },
}


def call_tool(name: str, arguments: str) -> str:
    """Return the result of a call as JSON. An error is a result too, which the model reads."""
    place = json_object(arguments).get("place")
    if name != _NAME:
        return json.dumps({"error": f"no tool {name}; the only one is {_NAME}"})
    if not isinstance(place, str):
        return json.dumps({"error": "the arguments must be an object with a text `place`"})
    zone = _zone_of(place)
    if zone is None:
        return json.dumps({"error": f"no time zone for {place}"})
    now = datetime.now(ZoneInfo(zone))
    return json.dumps({"place": place, "time_zone": zone, "time": now.isoformat(timespec="minutes")})


def _zone_of(place: str) -> str | None:
    """Return the IANA time zone with this name or with this city, or None."""
    wanted = place.partition(",")[0].strip().replace(" ", "_").lower()
    zones = sorted(available_timezones())
    return next((zone for zone in zones if wanted in {zone.lower(), zone.rpartition("/")[2].lower()}), None)
