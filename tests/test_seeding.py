from incseg.seeding import seed_from


def test_a_seed_depends_on_its_address_alone() -> None:
    assert seed_from(1, "a", 2) == seed_from(1, "a", 2)
    addresses = [(s, k, i) for s in range(3) for k in range(3) for i in range(50)]
    assert len({seed_from(*address) for address in addresses}) == len(addresses)
    assert all(0 <= seed_from(*address) < 2**63 for address in addresses)


def test_addresses_do_not_run_into_each_other() -> None:
    assert seed_from(1, 23) != seed_from(12, 3)
