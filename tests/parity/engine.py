"""The C++ model seen from Python."""


def run(model, batch):
    """Loss, logits of the real positions, gradient by parameter name: what `oracle.run` gives."""
    parameters = model.parameters()
    for parameter in parameters.values():
        parameter.grad = None
    output = model.forward(batch.tokens(), batch.shifted_labels(), batch.lengths)
    output["loss"].backward()
    logits = model.forward(batch.tokens(), None, batch.lengths)["logits"].detach()
    return output["loss"].detach(), logits, {name: parameter.grad for name, parameter in parameters.items()}


def relative_error(found, expected):
    """max |found - expected| over max |expected|."""
    if found is None or found.shape != expected.shape:
        return float("inf")
    difference = (found - expected).abs().max().item()
    return 0.0 if difference == 0.0 else difference / expected.abs().max().item()
