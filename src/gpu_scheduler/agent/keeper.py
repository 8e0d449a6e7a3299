"""The key of a running agent: it is renewed in time, and replaced when servers refuse it.

A key that is good wins over any token. One that was revoked, or is of another cluster, is replaced
by joining anew, with a token that was not used for it; its file is read at each try, so that nobody
has to start the agent again. If that is refused as well, the old key stays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.join import (
    Identity,
    NotJoined,
    identity_by,
    identity_of,
    join,
    joining_key,
    keep_joined,
    renewed,
)
from gpu_scheduler.agent.token_file import token_in
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.wire.node_proof import JoinText, secret_hash

LONGEST_WAIT_S = 3600.0
TRY_AGAIN_S = 60.0
MOST_TOKENS = 20
"""So many that it has joined with are remembered, so that none of them is shown again."""
JOINED_ANEW = "it has joined anew, and has another key now"
Client = tuple[bytes, bytes]
log = structlog.get_logger("agent")


async def keeper_of(config: AgentConfig) -> Keeper | None:
    """The identity of an agent and its keeper; None where the socket's owner vouches for it."""
    if all(target.startswith("unix:") for target in config.targets):
        return None
    directory, client = Path(config.dir), _client(config)
    token = config.token or token_in(config.token_file)
    waits_s = (config.retry_interval_s, config.max_retry_interval_s)
    identity = await identity_of(
        config.node, config.targets, directory, token, client=client, waits_s=waits_s
    )
    return Keeper(
        identity,
        directory,
        config.targets,
        token=config.token,
        token_file=config.token_file,
        client=client,
    )


class Keeper:
    """The identity of a running agent, as it is renewed. Whoever opens a stream asks for it."""

    def __init__(
        self,
        identity: Identity,
        directory: Path,
        targets: Sequence[str],
        *,
        token: str = "",
        token_file: str = "",
        client: Client | None = None,
    ) -> None:
        """Renewals are asked of the targets, and kept in the directory.

        The token, or what is in its file by then, is for the day when the key is refused.
        """
        self.identity = identity
        self._directory = directory
        self._targets = tuple(targets)
        self._token = token
        self._token_file = token_file
        self._client = client

    async def run(self) -> None:
        """Renew in time, for ever."""
        while True:
            wait_s = max(0.0, self.identity.renew_in_s)
            if wait_s:
                await asyncio.sleep(min(wait_s, LONGEST_WAIT_S))
                continue
            try:
                await self.renew()
            except (NotJoined, OSError) as error:
                log.warning("the node's key is not renewed yet", error=str(error))
                await asyncio.sleep(TRY_AGAIN_S * random.uniform(0.5, 1.0))

    async def renew(self) -> None:
        """Get a new key signed, and use it once it is kept; until then the old one is good."""
        old = self.identity
        key = ec.generate_private_key(ec.SECP256R1())
        answer = await renewed(old, self._targets, key)
        if self.identity is not old:
            return  # it has joined anew meanwhile, and that key counts
        new = identity_by(answer, key, plain=old.plain)
        new = replace(new, authority=old.authority, token=old.token)
        new.write(self._directory)
        self.identity = new
        log.info("the node has a new key", node=new.node)

    async def join_anew(self, *, is_refused: bool) -> str:
        """Join with a new token if the key is good for nothing, and say what came of it.

        Servers that refuse the key have said so; those of another cluster cannot even be asked,
        so a token for another authority than the key's is tried as well.
        """
        is_refused = is_refused or self.identity.is_expired
        troubles: list[str] = []
        for source, token in await asyncio.to_thread(self._tokens, troubles):
            try:
                if is_refused or JoinText.read(token).pin != self.identity.pin:
                    await self._join(token)
                    return JOINED_ANEW
            except (NotJoined, InvalidRequest, OSError) as error:
                told = f"with the token {source} it cannot join anew: {error}"
                if isinstance(error, NotJoined) and error.is_final and not is_refused:
                    return told  # by a server of the other cluster, so this is the one to mend
                troubles.append(told)
        return "; ".join((*troubles, self._advice())) if is_refused else ""

    def _tokens(self, troubles: list[str]) -> list[tuple[str, str]]:
        """Tokens with which this node has not joined yet, and where they are."""
        found = {}
        if self._token:
            found[self._token] = "that it was started with"
        try:
            if written := token_in(self._token_file):
                found[written] = f"in {self._token_file}"
        except InvalidInput as error:
            troubles.append(str(error))
        used = self.identity.token.split()
        return [
            (source, token)
            for token, source in found.items()
            if secret_hash(token.strip()) not in used
        ]

    async def _join(self, token: str) -> None:
        key = joining_key(self._directory, self.identity)
        node, client = self.identity.node, self._client
        identity = await join(node, self._targets, token, key=key, client=client)
        used = [*self.identity.token.split(), *identity.token.split()][-MOST_TOKENS:]
        identity = replace(identity, token=" ".join(dict.fromkeys(used)))
        keep_joined(identity, self._directory)
        self.identity = identity

    def _advice(self) -> str:
        make = f"to let it in again, run 'tgpu node token create -q --node {self.identity.node}'"
        if self._token_file:
            return (
                f"{make} on the server and write what it prints to {self._token_file} (mode 600) "
                "here; this agent looks there at each try"
            )
        return f"{make} on the server and start this agent again with --token and what it prints"


def _client(config: AgentConfig) -> Client | None:
    if not config.client_certificate:
        return None
    try:
        files = (config.client_certificate, config.client_key)
        certificate, key = (Path(file).read_bytes() for file in files)
    except OSError as error:
        raise InvalidRequest(
            f"grpc.client_certificate and grpc.client_key cannot be read: {error}"
        ) from None
    return certificate, key
