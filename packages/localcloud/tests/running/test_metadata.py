"""The metadata server: headers, listings, waiting GETs, guest attributes, credentials."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDictProxy

from localcloud.running.machines.metadata import MachineData, MetadataServer
from localcloud.tests.conftest import in_loop
from localcloud.tests.running.machine_world import NODE, machines, spec
from localcloud.world.timeline import Clock, Timeline

GOOGLE = {"Metadata-Flavor": "Google"}


class Here:
    def __init__(self, server: MetadataServer, data: MachineData, session: aiohttp.ClientSession) -> None:
        self.server, self.data, self.session = server, data, session

    async def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None
    ) -> tuple[int, str, "CIMultiDictProxy[str]"]:
        url = f"http://{self.server.address}/computeMetadata/v1/{path}"
        async with self.session.request(
            method, url, headers=GOOGLE if headers is None else headers, data=body
        ) as response:
            return response.status, await response.text(), response.headers


@contextlib.asynccontextmanager
async def here(**metadata: str) -> AsyncIterator[Here]:
    given = spec("", **metadata)
    data = MachineData(spec=given, metadata=dict(given.metadata))
    server = MetadataServer(
        data, access_token=lambda email: f"token-of-{email}", id_token=lambda email, audience: f"{email}|{audience}"
    )
    await server.start("127.0.0.1")
    try:
        async with aiohttp.ClientSession() as session:
            yield Here(server, data, session)
    finally:
        await server.stop()


@in_loop
async def test_googles_header_is_required_and_given():
    async with here() as at:
        assert (await at.ask("instance/name", headers={}))[0] == 403
        assert (await at.ask("instance/name", headers={**GOOGLE, "X-Forwarded-For": "10.0.0.1"}))[0] == 403
        status, text, headers = await at.ask("instance/name")
        assert (status, text, headers["Metadata-Flavor"]) == (200, "n1", "Google")
        assert (await at.ask("instance/nothing"))[0] == 404


@in_loop
async def test_the_machine_tells_who_it_is():
    async with here() as at:
        number = (await at.ask("project/numeric-project-id"))[1]
        assert (await at.ask("project/project-id"))[1] == "p"
        assert (await at.ask("instance/zone"))[1] == f"projects/{number}/zones/us-east5-a"
        assert (await at.ask("instance/service-accounts/default/email"))[1] == "vm@p.iam.gserviceaccount.com"
        listing = (await at.ask("instance/"))[1]
        assert "attributes/\n" in listing
        assert "zone\n" in listing


@in_loop
async def test_attributes_are_read_one_by_one_and_all_at_once():
    async with here(**{"my-key": "my value"}) as at:
        assert (await at.ask("instance/attributes/my-key"))[1] == "my value"
        assert "my-key\n" in (await at.ask("instance/attributes/"))[1]
        status, text, headers = await at.ask("instance/attributes/?recursive=true")
        assert status == 200
        assert headers["Content-Type"].startswith("application/json")
        assert json.loads(text)["my-key"] == "my value"
        whole = json.loads((await at.ask("?recursive=true"))[1])
        assert whole["project"]["projectId"] == "p"
        assert whole["instance"]["attributes"]["my-key"] == "my value"


@in_loop
async def test_a_waiting_get_answers_when_its_key_changes_and_not_for_others():
    async with here(key="old", other="1") as at:
        _, _, headers = await at.ask("instance/attributes/key")
        waiting = asyncio.create_task(
            at.ask(f"instance/attributes/key?wait_for_change=true&last_etag={headers['ETag']}&timeout_sec=20")
        )
        await asyncio.sleep(0.05)
        at.data.metadata["other"] = "2"
        at.server.changed()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        at.data.metadata["key"] = "new"
        at.server.changed()
        status, text, changed = await waiting
        assert (status, text) == (200, "new")
        assert changed["ETag"] != headers["ETag"]


@in_loop
async def test_a_waiting_get_answers_at_once_for_an_old_etag_and_in_time_for_no_change():
    async with here(key="value") as at:
        assert (await at.ask("instance/attributes/key?wait_for_change=true&last_etag=stale&timeout_sec=20"))[
            1
        ] == "value"
        etag = (await at.ask("instance/attributes/key"))[2]["ETag"]
        assert (await at.ask(f"instance/attributes/key?wait_for_change=true&last_etag={etag}&timeout_sec=0.1"))[
            1
        ] == "value"
        assert (await at.ask("instance/attributes/absent?wait_for_change=true&timeout_sec=0.1"))[0] == 404
        assert (await at.ask("instance/attributes/key?wait_for_change=true&timeout_sec=soon"))[0] == 400


@in_loop
async def test_guest_attributes_are_written_listed_and_deleted_where_they_are_enabled():
    async with here() as at:
        path = "instance/guest-attributes/gemma-serving/phase"
        assert (await at.ask(path))[0] == 404
        assert (await at.ask(path, "PUT", body="ready"))[0] == 200
        assert (await at.ask(path))[1] == "ready"
        assert (await at.ask("instance/guest-attributes/gemma-serving/"))[1] == "phase\n"
        assert at.data.guest_attributes == {"gemma-serving": {"phase": "ready"}}
        assert (await at.ask(path, "DELETE"))[0] == 200
        assert (await at.ask(path))[0] == 404
        at.data.metadata["enable-guest-attributes"] = "FALSE"
        assert (await at.ask(path, "PUT", body="ready"))[0] == 403


@in_loop
async def test_a_time_that_a_process_writes_is_the_clouds_after_an_advance():
    """An agent whose cloud was advanced still reports in time, and another value stays as it is."""
    timeline = Timeline(Clock())
    now = datetime.now(UTC)
    async with here() as at:
        at.data.of_process = timeline.of_process
        for passed_s in (0, 2400, 4800):
            path, written = "instance/guest-attributes/gemma-serving/updated-at", now.isoformat()
            await at.ask(path, "PUT", body=written)
            read = datetime.fromisoformat((await at.ask(path))[1])
            assert (read - now).total_seconds() == pytest.approx(passed_s, abs=0.01)
            for text in ("ready", "", (now + timedelta(hours=1)).isoformat(), "2026-11-01T10:00:00", "2026"):
                assert timeline.of_process(text) == text
            timeline.advance(2400)


@in_loop
async def test_credentials_are_those_of_the_service_account():
    async with here() as at:
        token = json.loads((await at.ask("instance/service-accounts/default/token"))[1])
        assert token["access_token"] == "token-of-vm@p.iam.gserviceaccount.com"
        assert token["token_type"] == "Bearer"
        assert token["expires_in"] > 0
        assert (await at.ask("instance/service-accounts/default/identity"))[0] == 400
        assert (await at.ask("instance/service-accounts/default/identity?audience=https://x"))[
            1
        ] == "vm@p.iam.gserviceaccount.com|https://x"
        assert (await at.ask("instance/service-accounts/other/token"))[0] == 404


@in_loop
async def test_metadata_that_changes_while_a_machine_boots_is_not_lost(tmp_path: Path):
    async with machines(tmp_path) as running:
        booting = asyncio.create_task(running.boot(spec("", ends="unknown")))
        await asyncio.sleep(0)
        running.set_metadata(NODE, {"ends": "at noon"})
        await booting
        url = f"http://{running._machines[NODE].server.address}/computeMetadata/v1/instance/attributes/ends"
        async with aiohttp.ClientSession() as session, session.get(url, headers=GOOGLE) as response:
            assert await response.text() == "at noon"
