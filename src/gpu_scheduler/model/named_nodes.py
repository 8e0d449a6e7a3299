"""Nodes that are asked for, or not wanted, by their names.

A name is one more thing that a node answers to, so it travels with the labels that a request wants:
two labels of ours hold lists of names, and whoever compares labels asks `suits`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.own_labels import offer_of

ONLY = "tgpu.only-nodes"
NOT = "tgpu.not-nodes"
Labels = tuple[tuple[str, str], ...]


def labels_of_names(only: Iterable[str], excluded: Iterable[str]) -> Labels:
    """The names as labels; a node that is both wanted and not wanted is refused."""
    wanted, unwanted = set(only), set(excluded)
    both = sorted(wanted & unwanted)
    if both:
        raise InvalidRequest(
            f"node '{both[0]}' is asked for and excluded as well; leave it out of one of the lists"
        )
    for name in sorted(wanted | unwanted):
        if not name or "," in name or not name.isprintable():
            raise InvalidRequest(
                f"'{name[:63]}' cannot be the name of a node; 'tgpu nodes' has all"
            )
    lists = ((ONLY, wanted), (NOT, unwanted))
    return tuple((label, ",".join(sorted(names))) for label, names in lists if names)


def suits(wanted: Labels, node_id: str, labels: Labels) -> bool:
    """Tell whether a node has all labels that are wanted, and a name that is."""
    has = set(labels)
    for label, value in wanted:
        if label == ONLY:
            if node_id not in value.split(","):
                return False
        elif label == NOT:
            if node_id in value.split(","):
                return False
        elif (label, value) not in has:
            return False
    return True


def in_words(wanted: Labels) -> list[str]:
    """What is wanted of a node, in words."""
    found = dict(wanted)
    only, excluded = found.pop(ONLY, ""), found.pop(NOT, "")
    words = []
    asked = [f"{name}={value}" for name, value in found.items() if not offer_of(name)]
    if asked:
        words.append("labels " + ", ".join(asked))
    words += [f"with {offer}" for name in found if (offer := offer_of(name))]
    if only:
        words.append(f"on {only.replace(',', ' or ')}")
    if excluded:
        words.append(f"not on {excluded.replace(',', ' or ')}")
    return words


def asked_for(wanted: Labels) -> Labels:
    """Those that somebody asked for, without our own."""
    return tuple(label for label in wanted if not offer_of(label[0]))


def names_nodes(label: str) -> bool:
    """Tell whether a label holds names of nodes."""
    return label in {ONLY, NOT}


def ruled_out_by(label: tuple[str, str]) -> str:
    """Why a node does not do that does not suit one label."""
    if label[0] == ONLY:
        return "not named by --nodelist"
    if label[0] == NOT:
        return "excluded by name"
    return f"without {offer_of(label[0]) or f'label {label[0]}={label[1]}'}"
