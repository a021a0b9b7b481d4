"""The client: trains adapters on its own words. One line makes it fair; it is marked."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader

from adapters.task import Network, load_data
from propfair.flower import fair_mod


def own_batches(context: Context) -> tuple[DataLoader, DataLoader]:
    return load_data(int(context.node_config["partition-id"]), int(context.run_config["batch-size"]))


app = ClientApp(mods=[fair_mod(lambda context: own_batches(context)[0])])  # the line


@app.train()
def train(message: Message, context: Context) -> Message:
    model, (batches, _) = received(message), own_batches(context)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=float(context.run_config["lr"])
    )
    model.train()
    for batch in batches:
        optimizer.zero_grad()
        criterion(model(batch["letters"]), batch["label"]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.adapters()), "metrics": MetricRecord({"num-examples": len(batches.dataset)})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
@torch.no_grad()
def evaluate(message: Message, context: Context) -> Message:
    model, (_, batches) = received(message).eval(), own_batches(context)
    output, labels = (
        torch.cat(parts) for parts in zip(*((model(b["letters"]), b["label"]) for b in batches), strict=True)
    )
    metrics = {
        "loss": float(nn.functional.cross_entropy(output, labels)),
        "accuracy": float((output.argmax(1) == labels).float().mean()),
        "num-examples": len(labels),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def received(message: Message) -> Network:
    model = Network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)  # the rest is the same for all
    return model
