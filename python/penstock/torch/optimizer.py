"""optimizer.py - a torch.optim optimizer whose rule runs where the job says: on servers, sharded, or on each worker."""
import inspect
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from ..context import Context
from ..errors import End, InvalidArgument, Unsupported, WrongState
from ..step import Step
from ..tensor import Params, Tensor
from . import job


def _words(**numbers: Any) -> str:
    return " ".join(
        f"{k}={('yes' if v else 'no') if isinstance(v, bool) else repr(float(v))}" for k, v in numbers.items()
    )


def _adam(rule: str) -> Callable[[Dict[str, Any]], str]:
    return (
        lambda g: rule
        + " "
        + _words(beta1=g["betas"][0], beta2=g["betas"][1], eps=g["eps"], weight_decay=g["weight_decay"])
    )


def _plain(rule: str, *names: str, **renamed: str) -> Callable[[Dict[str, Any]], str]:
    def write(group: Dict[str, Any]) -> str:
        numbers = {name: group[name] for name in names}
        numbers.update({ours: group[theirs] for ours, theirs in renamed.items()})
        return rule + " " + _words(**numbers)

    return write


_RULES: Dict[type, Callable[[Dict[str, Any]], str]] = {
    torch.optim.SGD: _plain("sgd", "momentum", "dampening", "nesterov", "weight_decay"),
    torch.optim.Adam: _adam("adam"),
    torch.optim.AdamW: _adam("adamw"),
    torch.optim.Adamax: _adam("adamax"),
    torch.optim.Adagrad: _plain(
        "adagrad", "lr_decay", "eps", "weight_decay", initial_accumulator="initial_accumulator_value"
    ),
    torch.optim.RMSprop: _plain("rmsprop", "alpha", "eps", "momentum", "centered", "weight_decay"),
    torch.optim.Adadelta: _plain("adadelta", "rho", "eps", "weight_decay"),
}
_REFUSED = ("amsgrad", "maximize", "differentiable")


def _rule_of(kind: type, group: Dict[str, Any]) -> str:
    """The update rule of a param group, without its rate."""
    if kind not in _RULES:
        known = ", ".join(k.__name__ for k in _RULES)
        raise Unsupported(f"DistributedOptimizer: {kind.__name__} has no rule in Penstock: use one of {known}")
    for word in _REFUSED:
        if group.get(word):
            raise Unsupported(f"DistributedOptimizer: {kind.__name__} with {word}=True has no rule in Penstock")
    return _RULES[kind](group)


class _Form:
    """The state that torch's optimizer keeps of a parameter: its names and types, as a step with one number shows them."""

    def __init__(self, kind: type, group: Dict[str, Any]) -> None:
        p = torch.nn.Parameter(torch.zeros(1))
        known = inspect.signature(kind).parameters
        optimizer = kind([p], **{name: value for name, value in group.items() if name in known and name != "params"})
        self._before = dict(optimizer.state.get(p, {}))
        p.grad = torch.zeros(1)
        optimizer.step()
        self._after = dict(optimizer.state.get(p, {}))

    def at(self, applied: int) -> Dict[str, Any]:
        """After so many updates; tensors other than "step" stand for arrays like the parameter."""
        state = dict(self._after if applied > 0 else self._before)
        if "step" in state:
            step = state["step"]
            state["step"] = torch.full_like(step, applied) if isinstance(step, torch.Tensor) else applied
        return state


def _updates(states: Dict[torch.nn.Parameter, Dict[str, Any]]) -> int:
    """How many updates they have had; SGD does not say, but its first one is special."""
    known = [state for state in states.values() if any(value is not None for value in state.values())]
    counts = {int(state["step"]) if "step" in state else 1 for state in known}
    if len(counts) > 1:
        raise Unsupported(f"load_state_dict(): parameters have had different numbers of updates: {sorted(counts)}")
    return counts.pop() if counts else 0


class DistributedOptimizer(torch.optim.Optimizer):
    """A torch.optim optimizer whose rule Penstock runs: on servers, sharded over the workers, or on each (setting mode).

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer = penstock.torch.DistributedOptimizer(optimizer, model.named_parameters())

    Gradients leave as they become ready in the backward pass; step() waits for the new values, which are those of the mean
    gradient over all ranks.  Making it gives all ranks rank 0's parameters.

    Shape      optimizer: SGD, Adam, AdamW, Adamax, Adagrad, RMSprop or Adadelta of torch.optim.  named_parameters:
               names in snapshots and errors; without it "group.index".  buffers: model.named_buffers(), kept equal to
               rank 0's, as DDP does.  Param groups have rules and rates of their own; schedulers may change lr, and
               nothing else.  A parameter without a gradient on this rank counts as zero.
               backward_passes_per_step: gradients of so many backward passes are added before they leave.
               commit=False: register more (tables, another optimizer), and call penstock.torch.context().commit().
    Dtype      parameters of float32, float16, bfloat16; in host memory.
    Ownership  parameters and gradients are used where they lie.  Between backward() and step() do not write to
               gradients: they have left.
    Thread     that of backward() and step().
    Errors     Unsupported: a rule, a sparse gradient.  Those of Step.end(), from step(); of Tensor.ready(), from
               backward().
    Cost       that of a step of the C API, and some 10 us a parameter.
    Source     Horovod's and BytePS's DistributedOptimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, torch.nn.Parameter]]] = None,
        *,
        buffers: Iterable[Tuple[str, torch.Tensor]] = (),
        backward_passes_per_step: int = 1,
        commit: bool = True,
    ) -> None:
        self._kind = type(optimizer)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._context: Context = job.init()
        self._passes = backward_passes_per_step
        self._step: Optional[Step] = None
        self._lock = threading.Lock()  # of the begin of a step: hooks of several devices run in several threads
        self._is_committed = False
        self.last_step: Optional[Step] = None
        self._params: List[Params] = []
        self._rules: List[str] = []
        self._tensors: Dict[torch.nn.Parameter, Tensor] = {}
        self._counted: Dict[torch.nn.Parameter, int] = {}
        self._forms: Dict[torch.nn.Parameter, _Form] = {}
        self._hooks: List[Any] = []
        self._register(dict(self._names(named_parameters)), buffers)
        if commit:
            self._context.commit()

    def _names(
        self, named: Optional[Iterable[Tuple[str, torch.nn.Parameter]]]
    ) -> Iterable[Tuple[torch.nn.Parameter, str]]:
        if named is not None:
            for name, p in named:
                yield p, name
            return
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                yield p, f"{g}.{i}"

    def _register(self, names: Dict[torch.nn.Parameter, str], buffers: Iterable[Tuple[str, torch.Tensor]]) -> None:
        for g, group in enumerate(self.param_groups):
            rule = _rule_of(self._kind, group)
            self._rules.append(rule)
            self._params.append(self._context.params(f"group{g}", optim=f"{rule} lr={float(group['lr'])!r}"))
            form = _Form(self._kind, group)
            for p in group["params"]:
                if p not in names:
                    raise InvalidArgument(
                        f"DistributedOptimizer: a parameter of group {g}, of shape {list(p.shape)}, is not "
                        f"among named_parameters"
                    )
                if p.requires_grad:
                    self._tensors[p] = self._context.register(names[p], p.detach(), params=self._params[g])
                    self._counted[p] = 0
                    self._forms[p] = form
                    self._hook(p)
        for name, buffer in buffers:
            self._context.register(name, buffer, buffer=True)

    def _hook(self, p: torch.nn.Parameter) -> None:
        if hasattr(p, "register_post_accumulate_grad_hook"):
            self._hooks.append(p.register_post_accumulate_grad_hook(self._gradient_is_there))
            return
        node = p.expand_as(p).grad_fn.next_functions[0][0]  # torch 1.13: the node that adds to p.grad
        node.register_hook(lambda *_: self._gradient_is_there(p))
        self._hooks.append(node)  # it lives as long as somebody holds it

    # ---- a step ---------------------------------------------------------------------------------
    def _begin(self) -> Step:
        with self._lock:
            if self._step is None:
                step = self._context.step()
                if step is None:
                    raise End("the job is over, or this worker was asked to leave: end the loop")
                for g, group in enumerate(self.param_groups):
                    if _rule_of(self._kind, group) != self._rules[g]:
                        raise Unsupported(
                            f"DistributedOptimizer: of param group {g} only lr may change while the job runs"
                        )
                    self._params[g].set_lr(float(group["lr"]))
                self._step = step
            return self._step

    def _gradient_is_there(self, p: torch.nn.Parameter) -> None:
        self._counted[p] += 1
        if self._counted[p] < self._passes:
            return
        if self._counted[p] > self._passes:
            raise WrongState(
                f"the gradient of {self._tensors[p].name} has left already: call step() after {self._passes} backward "
                f"pass{'es' if self._passes > 1 else ''}, or give backward_passes_per_step"
            )
        self._begin()
        self._send(p)

    def _send(self, p: torch.nn.Parameter) -> None:
        grad: Any = p.grad
        if grad.layout is not torch.strided:
            raise Unsupported(
                f"the gradient of {self._tensors[p].name} is sparse: use sparse=False, or a table of rows by key"
            )
        if not grad.is_contiguous():
            grad = p.grad = grad.contiguous()
        self._tensors[p].bind(grad=grad)  # zero_grad() may have moved it
        self._tensors[p].ready()

    @property
    def loss_scale(self) -> float:
        """What to multiply the loss by: 1, or with precision=fp16 a dynamic scale as torch's GradScaler has it."""
        return float(self._begin().loss_scale)

    def weigh(self, weight: float) -> None:
        """This rank's weight in the mean of this step, such as its samples; before its backward pass."""
        self._begin().weight = weight

    def scalar(self, name: str, value: float) -> None:
        """Adds a number of this rank to the step, as Step.scalar(); before its backward pass."""
        self._begin().scalar(name, value)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Ends the step on all ranks: parameters have the new values.

        Errors     those of Step.end().   End: the job is over.
        """
        loss = closure() if closure is not None else None
        step = self._begin()
        for p in self._tensors:
            if self._counted[p] < self._passes:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self._send(p)
        step.end()
        self.last_step, self._step = step, None
        for p, tensor in self._tensors.items():
            self._counted[p] = 0
            tensor._let_grad_go()
        return loss

    def synchronize(self) -> None:
        """Nothing to wait for: step() does.  For scripts of Horovod."""

    def clip_grad_norm_(self, max_norm: float) -> Optional[torch.Tensor]:
        """Says that the job clips the global norm at max_norm, as torch.nn.utils.clip_grad_norm_ would; returns the
        norm of the last step, or None.

        Errors     WrongState: the job clips at another norm; gradients have left, so it must be known before: run with
                   --clip, or penstock.torch.init(clip=...).
        """
        clip = job.clip()
        if clip != max_norm:
            raise WrongState(
                f"clip_grad_norm_({max_norm}): this job clips at {clip or 'no norm'}, and gradients have left already: "
                f"run with --clip {max_norm}, or begin with penstock.torch.init(clip={max_norm})"
            )
        return torch.tensor(self.last_step.grad_norm) if self.last_step is not None else None

    def state_dict(self) -> Dict[str, Any]:
        """The state of the rule and the param groups, as the torch.optim class writes them: it can load it.

        Shape      collective: all ranks call it, and all get it.  State in float32.
        Thread     between steps.
        Errors     those of Context.get_slots().
        Cost       a copy of the state for each rank.
        """
        applied = self._context.get_slots([])
        arrays = []
        for p, tensor in self._tensors.items():
            state = self._forms[p].at(applied)
            if state:
                self.state[p] = state
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and name != "step":
                    state[name] = torch.empty(p.shape, dtype=torch.float32)
                    arrays.append((tensor, name, state[name]))
        try:
            self._context.get_slots(arrays)
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continues from a state_dict of this class or of the torch.optim class, with rank 0's parameters as they are now.

        So load the module first, on rank 0 at least.  A parameter without state begins with zeros.

        Shape      collective; rank 0's state counts.  On a worker that joins a running job it has no effect.
        Thread     between steps.
        Errors     Unsupported: other numbers than this optimizer's, except lr; parameters with different step counts.
                   ValueError: other param groups.   Those of Context.set_slots().
        Cost       a broadcast of parameters and state.
        """
        groups = state_dict["param_groups"]
        for g, (ours, saved) in enumerate(zip(self.param_groups, groups)):
            if _rule_of(self._kind, {**ours, **saved}) != self._rules[g]:
                raise Unsupported(
                    f"load_state_dict(): param group {g} has other numbers than this optimizer, beside lr"
                )
        super().load_state_dict({"state": {}, "param_groups": groups})
        numbers = [i for saved in groups for i in saved["params"]]
        states = {p: state_dict["state"].get(i, {}) for i, p in zip(numbers, self._in_order())}
        arrays = []
        for p, tensor in self._tensors.items():
            arrays.append((tensor, "param", p.detach().float().contiguous()))
            for name, value in self._forms[p].at(1).items():
                if isinstance(value, torch.Tensor) and name != "step":
                    saved = states[p].get(name)
                    empty = torch.zeros(p.shape) if saved is None else saved
                    arrays.append((tensor, name, empty.detach().to("cpu", torch.float32).contiguous()))
        self._context.set_slots(arrays, _updates(states))

    def _in_order(self) -> Iterable[torch.nn.Parameter]:
        return (p for group in self.param_groups for p in group["params"])
