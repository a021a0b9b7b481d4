"""A client with a training loop of its own. One line makes it fair; it is marked."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader

from fairapp.task import network, own_data
from propfair.flower import fair_mod, fair_sampler


def batches(context: Context) -> DataLoader:
    data, _ = own_data(context.node_config)
    return DataLoader(data, int(context.run_config["batch-size"]), sampler=fair_sampler(data))  # or shuffle=True


app = ClientApp(mods=[fair_mod(batches)])  # the line


@app.train()
def train(message: Message, context: Context) -> Message:
    model, config = received(message), context.run_config
    loader = batches(context)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["lr"]))
    model.train()
    for _ in range(int(config["epochs"])):
        for images, digits in loader:
            optimizer.zero_grad()
            criterion(model(images), digits).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
@torch.no_grad()
def evaluate(message: Message, context: Context) -> Message:
    model = received(message).eval()
    _, data = own_data(context.node_config)
    images, digits = data.tensors
    output = model(images)
    metrics = MetricRecord(
        {
            "loss": float(nn.functional.cross_entropy(output, digits)),
            "accuracy": float((output.argmax(1) == digits).float().mean()),
            "num-examples": len(data),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def received(message: Message) -> nn.Module:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model
