"""Lanes of one stacked program are the single networks."""

from contextlib import contextmanager

import pytest
import torch
from helpers.variants import DYNAMIC, RATES, VARIANTS, stacked_groups

from eigensweep.models.base import scalar_name
from eigensweep.models.stack import Stack


@contextmanager
def threads_of_torch(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def lanes_of(nets, name, fields):
    """Return two networks; of an ENRNN the second one is switched on."""
    networks = [nets.generic(name, seed=seed, scale=0.02, **fields) for seed in (1, 2)]
    if name == "enrnn":
        networks[0].T.data.mul_(0.5)
        networks[1].T.data.mul_(3)
    return networks


def close(found, expected):
    if isinstance(expected, dict):
        for key, value in expected.items():
            close(found[key], value)
    else:
        atol = 1e-12 * max(1.0, expected.to(torch.complex128).norm().item())
        torch.testing.assert_close(found, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
class TestLanes:
    @pytest.mark.quick_cases(6)
    def test_values_gradients_and_updates_are_those_of_one_network(self, nets, name, fields):
        networks = lanes_of(nets, name, fields)
        stack = Stack(networks)
        for _ in range(3):
            stack.after_update(RATES)
            x = nets.input(networks[0].shapes, lanes=(2,))
            logits, state = stack(x)
            again, _ = stack(x, state)
            ((logits + again).pow(2).sum() + stack.call("penalty").sum()).backward()
            for i, network in enumerate(networks):
                network.after_update({"main": RATES["main"][i].item(), "orth": 0.01})
                network.zero_grad()
                expected, carried = network(x[i])
                second, _ = network(x[i], carried)
                close(logits[i], expected)
                ((expected + second).pow(2).sum() + network.penalty()).backward()
            with torch.no_grad():
                for key, parameter in stack.parameters.items():
                    for i, network in enumerate(networks):
                        single = network.get_parameter(key.removeprefix("model."))
                        close(parameter.grad[i], single.grad)
                        single.sub_(0.01 * single.grad.tanh())
                    parameter.sub_(0.01 * parameter.grad.tanh())
                    parameter.grad = None
        for i, network in enumerate(networks):
            close(stack.lane(i), dict(network.state_dict()))
        if name == "enrnn" and networks[0].config.short:
            assert stack.buffers["model.switched"].tolist() == [False, True]

    @pytest.mark.quick_cases(6)
    def test_reports_and_matrices_have_lanes_first(self, nets, name, fields):
        networks = lanes_of(nets, name, fields)
        stack = Stack(networks)
        close(stack.call("recurrent_matrix"), torch.stack([n.recurrent_matrix() for n in networks]))
        for key, values in stack.call("constraint_report").items():
            close(values, torch.stack([n.constraint_report()[key] for n in networks]))


@pytest.mark.parametrize("natgrad_rms", [False, True])
def test_a_rule_of_its_own_moves_each_lane_as_a_single_network(nets, natgrad_rms):
    networks = lanes_of(nets, "full_urnn", {"natgrad_rms": natgrad_rms})
    stack = Stack(networks)
    x = nets.input(networks[0].shapes, lanes=(2,))

    def optimizer(groups):
        return groups[0].rule([{"params": groups[0].params, "lr": 0.1}])

    together = optimizer(stacked_groups(stack, networks[0]))
    alone = [optimizer(network.param_groups()) for network in networks]
    for _ in range(3):
        together.zero_grad()
        stack(x)[0].pow(2).sum().backward()
        together.step()
        for i, network in enumerate(networks):
            alone[i].zero_grad()
            network(x[i])[0].pow(2).sum().backward()
            alone[i].step()
            close(stack.parameters["model.W"][i], network.W)


def test_one_input_can_be_shared_by_all_lanes(nets):
    stack = Stack(lanes_of(nets, "scornn", {}))
    x = nets.input(nets.shapes())
    close(stack(x, shared=True)[0], stack(torch.stack([x, x]))[0])


def test_a_lane_loads_into_a_network_built_alone(nets):
    networks = lanes_of(nets, "enrnn", {})
    stack = Stack(networks)
    stack.after_update(RATES)
    alone = nets.build("enrnn", seed=7).double()
    alone.load_state_dict(stack.lane(1))
    x = nets.input(alone.shapes)
    close(alone(x)[0], stack(x, shared=True)[0][1])


SCALARS = [
    ("enrnn", {}, ({"eps": 0.3}, {"eps": 0.0})),
    ("asrnn", {}, ({"eps": 0.5, "a": 0.1}, {"eps": 0.03, "a": 0.2})),
    ("asrnn", DYNAMIC, ({"rebase_every": 1, "project_every": 1}, {"rebase_every": 3})),
    ("exprnn", DYNAMIC, ({"rebase_every": 1, "project_every": 3}, {"rebase_every": 2})),
    ("nnrnn", {}, ({"gamma_weight": 0.5, "t_decay": 0.1}, {"gamma_weight": 0.0})),
    ("spectral_rnn", {}, ({"margin": 0.3}, {"margin": 0.05})),
    ("lt_rnn", {"activation_clip": 1.0}, ({"activation_clip": 0.5}, {})),
    ("lt_rnn", {"orthogonality_penalty": 1.0}, ({"orthogonality_penalty": 0.5}, {})),
    ("cornn", {}, ({"dt": 0.3, "gamma": 1.0}, {"dt": 0.1, "epsilon": 0.5})),
    ("lem", {}, ({"dt": 0.3}, {"dt": 1.5})),
    ("lstm", {}, ({"forget_bias": 0.0}, {"forget_bias": 3.0})),
    ("scornn", {}, ({"negative_ones": 1}, {"negative_ones": 9})),
]


@pytest.mark.parametrize(("name", "common", "each"), SCALARS)
class TestLanesOfDifferentNumbers:
    def test_a_lane_computes_with_the_numbers_of_its_own_config(self, nets, name, common, each):
        networks = [
            lanes_of(nets, name, {**common, **fields})[index] for index, fields in enumerate(each)
        ]
        stack = Stack(networks)
        x = nets.input(networks[0].shapes, lanes=(2,))
        for _ in range(3):
            stack.after_update(RATES)
            for i, network in enumerate(networks):
                network.after_update({"main": RATES["main"][i].item(), "orth": 0.01})
            stack.parameters = {n: p.detach() + 0.01 for n, p in stack.parameters.items()}
            for network in networks:
                for parameter in network.parameters():
                    parameter.data.add_(0.01)
        close(stack(x)[0], torch.stack([net(x[i])[0] for i, net in enumerate(networks)]))
        close(stack.call("penalty"), torch.stack([net.penalty() for net in networks]))

    def test_checkpoints_know_nothing_of_them(self, nets, name, common, each):
        networks = [nets.build(name, **{**common, **fields}).double() for fields in each]
        stack = Stack(networks)
        assert stack.lane(0).keys() == networks[0].state_dict().keys()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("enrnn", "eps"), ("asrnn", "eps"), ("nnrnn", "gamma_weight")),
        *(("spectral_rnn", "margin"), ("cornn", "epsilon"), ("lem", "dt")),
    ],
)
def test_a_number_and_a_tensor_of_it_give_the_same_bits(nets, name, number):
    network = nets.build(name, **{number: 0.123})
    results = []
    for scalar in (None, torch.tensor(0.123)):
        if scalar is not None:
            network.register_buffer(scalar_name(number), scalar, persistent=False)
        network.zero_grad()
        torch.manual_seed(3)
        x = nets.input(network.shapes)
        (network(x)[0].sum() + network.penalty()).backward()
        results.append([p.grad.clone() for p in network.parameters()])
    assert all(map(torch.equal, *results))


HOST_VALUES = [
    ("enrnn", {}),
    ("enrnn", {"fallback": "unnormalised", "eps": 0.1}),
    ("enrnn", {"short_size": 0}),
    ("enrnn", {"short_size": 130, "hidden_size": 132, "negative_ones": 1}),
    ("lt_rnn", {"orthogonality_penalty": 1.0, "orthogonality_vectors": 3}),
]


@pytest.mark.parametrize(("name", "fields"), HOST_VALUES)
class TestWhatTheHostComputesBetweenSteps:
    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.quick_cases(4)
    def test_lanes_are_single_networks(self, nets, name, fields, threads):
        networks = lanes_of(nets, name, fields)
        stack = Stack(networks, host_values=True)
        x = nets.input(networks[0].shapes, lanes=(2,))
        for _ in range(4):
            (stack(x)[0].pow(2).sum() + stack.call("penalty").sum()).backward()
            with torch.no_grad():
                for parameter in stack.parameters.values():
                    parameter.sub_(0.1 * parameter.grad.tanh())
                    parameter.grad = None
            stack.after_update(RATES)
            with threads_of_torch(threads):
                stack.work_on_host()
            for i, network in enumerate(networks):
                (network(x[i])[0].pow(2).sum() + network.penalty()).backward()
                with torch.no_grad():
                    for parameter in network.parameters():
                        parameter.sub_(0.1 * parameter.grad.tanh())
                        parameter.grad = None
                network.after_update({"main": RATES["main"][i].item(), "orth": 0.01})
                close(stack.lane(i), dict(network.state_dict()))
        assert not stack.buffers["model.pending"].any()

    def test_a_lane_that_was_not_updated_keeps_what_it_has(self, nets, name, fields):
        stack = Stack(lanes_of(nets, name, fields), host_values=True)
        before = [stack.lane(i) for i in range(2)]
        stack.work_on_host()
        for i, lane in enumerate(before):
            torch.testing.assert_close(stack.lane(i), lane, atol=0, rtol=0, equal_nan=True)


def test_a_surely_stable_block_leaves_the_host_idle(nets):
    stable, unstable = (nets.build("enrnn", seed=3) for _ in range(2))
    with torch.no_grad():
        stable.T.copy_(0.9 * torch.eye(4))
        unstable.T.copy_(torch.eye(4) + torch.ones(4, 4).triu(1))
    stack = Stack([stable, unstable], host_values=True)
    stack.after_update(RATES)
    assert stack.buffers["model.pending"].tolist() == [False, True]


def test_networks_stack_where_only_first_values_differ(nets):
    few = nets.build("scornn", negative_ones=1)
    many = nets.build("scornn", negative_ones=9, recurrent_init="henaff")
    assert len(Stack([few, many])) == 2
    with pytest.raises(ValueError, match="these differ in hidden_size"):
        Stack([few, nets.build("scornn", hidden_size=11)])
    with pytest.raises(ValueError, match="these differ in activation"):
        Stack([nets.build("enrnn"), nets.build("enrnn", activation="tanh")])
    with pytest.raises(ValueError, match="these differ in activation_clip"):
        Stack([nets.build("lt_rnn"), nets.build("lt_rnn", activation_clip=1.0)])
    with pytest.raises(ValueError, match="of equal shapes; these differ in draws"):
        Stack([nets.build("lt_rnn"), nets.build("lt_rnn", orthogonality_penalty=1.0)])
    with pytest.raises(ValueError, match="ScoRNN and TanhRNN"):
        Stack([few, nets.build("tanh_rnn")])
