"""Tokens are made, used and revoked."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.messages import MakeToken, RevokeToken, UseToken
from gpu_scheduler.model.errors import AlreadyExists, UnknownThing, WrongState
from gpu_scheduler.model.token import Token


def change(
    book: Book, message: MakeToken | RevokeToken | UseToken, now_ms: int, outcome: Outcome
) -> None:
    """Do what the message says."""
    match message:
        case MakeToken(token):
            if token.id in book.tokens:
                raise AlreadyExists(f"token {token.id} exists; try again")
        case RevokeToken(token_id):
            token = _known(book, token_id)
            if token.revoked_ms:
                raise WrongState(f"token {token_id} has been revoked already")
            token = replace(token, revoked_ms=max(1, now_ms))
        case UseToken(token_id):
            token = replace(_known(book, token_id), last_used_ms=now_ms)
    book.tokens[token.id] = token
    book.token_ids[token.secret_hash] = token.id
    outcome.writes.append(token)


def _known(book: Book, token_id: str) -> Token:
    token = book.tokens.get(token_id)
    if token is None:
        raise UnknownThing(f"token '{token_id}' is not known; 'tgpu token list' shows yours")
    return token
