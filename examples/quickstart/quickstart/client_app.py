"""The client: trains and tests the model that it receives on its own digits."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader

from quickstart.task import Net, load_data, test, train


def own_batches(context: Context) -> tuple[DataLoader, DataLoader]:
    place = context.node_config
    return load_data(int(place["partition-id"]), int(place["num-partitions"]), int(context.run_config["batch-size"]))


app = ClientApp()


@app.train()
def train_model(message: Message, context: Context) -> Message:
    model, device = received(message)
    batches, _ = own_batches(context)
    lr = float(message.content["config"]["lr"])
    train_loss = train(model, batches, int(context.run_config["local-epochs"]), lr, device)
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    model, device = received(message)
    _, batches = own_batches(context)
    loss, accuracy = test(model, batches, device)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def received(message: Message) -> tuple[Net, torch.device]:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, torch.device("cuda" if torch.cuda.is_available() else "cpu")
