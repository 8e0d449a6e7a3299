"""The keys of nodes as the core knows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_scheduler.model.node_key import Authority, Identity, JoinToken, NodeKey


@dataclass(slots=True)
class NodeKeys:
    """All that is known of the keys of nodes."""

    authority: Authority | None = None
    tokens: dict[str, JoinToken] = field(default_factory=dict)
    token_ids: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodeKey] = field(default_factory=dict)

    def keep(self, *identities: Identity) -> None:
        """Take in what is kept, or is about to be."""
        for found in identities:
            match found:
                case Authority():
                    self.authority = found
                case JoinToken():
                    self.tokens[found.id] = found
                    self.token_ids[found.secret_hash] = found.id
                case NodeKey():
                    self.nodes[found.node] = found
