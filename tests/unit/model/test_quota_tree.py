"""Names in the quota tree that match no tenant and no GPU."""

from gpu_scheduler.model.quota_tree import NodeQuota, QuotaNode, unmatched_names


def warnings(*nodes: QuotaNode, models: tuple[str, ...] = ()) -> list[str]:
    return unmatched_names(nodes, tenants={"vision", "speech"}, models=models)


def test_leaf_that_is_no_tenant_is_reported_with_its_place_and_the_nearest_tenant() -> None:
    (found,) = warnings(QuotaNode(name="Vison", origin="config.yaml, line 4"))
    assert found == (
        "config.yaml, line 4: node 'Vison' of quota_tree has no children and is not the id of a "
        "tenant, so no job counts in it; did you mean 'vision'?"
    )


def test_groups_with_children_need_no_tenant() -> None:
    assert not warnings(QuotaNode(name="science"), QuotaNode(name="vision", parent="science"))


def test_tenant_of_a_user_node_must_exist() -> None:
    (found,) = warnings(QuotaNode(name="optics"), QuotaNode(name="optics/ann", parent="optics"))
    assert "'optics' of quota_tree has users of a tenant and is not the id of a tenant" in found
    assert found.endswith("create the tenant, or give the node children")


def test_tenant_that_has_a_node_is_not_proposed_for_another_one() -> None:
    (found,) = warnings(QuotaNode(name="vision"), QuotaNode(name="visions"))
    assert "did you mean" not in found


def test_model_that_no_node_has_is_reported_when_nodes_are_known() -> None:
    node = QuotaNode(name="vision", quotas=(NodeQuota(model="H1000"), NodeQuota(model="*")))
    assert not warnings(node)
    (found,) = warnings(node, models=("A100", "H100"))
    assert found.endswith("and no node has such GPUs; did you mean 'H100'?")
    (found,) = warnings(node, models=("L4",))
    assert found.endswith("there are L4")
