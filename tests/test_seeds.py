from rlmesh.seeds import fan_out


def test_no_two_streams_of_a_run_are_the_same():
    seeds = {fan_out(0, "sample", step, index, n) for step in range(20) for index in range(32) for n in range(8)}
    assert len(seeds) == 20 * 32 * 8
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_path_is_not_its_concatenation():
    assert fan_out(0, "a", 12, 3) != fan_out(0, "a", 1, 23)
