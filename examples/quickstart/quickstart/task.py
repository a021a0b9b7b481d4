"""The task: digits of several writers, a small network, and how it is trained and tested."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    """A small convolutional network with the same first parameters on every machine."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


class Digits(Dataset):
    """The digits of one client. Each has more of some digits than of others."""

    def __init__(self, client: int, num_clients: int, test: bool) -> None:
        images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
        mine = ((labels + torch.arange(len(labels)) // 600) % num_clients == client).nonzero().flatten()
        self.index = mine[4::5] if test else mine[torch.arange(len(mine)) % 5 != 4]
        self.images, self.labels = images.float().div(16).view(-1, 1, 8, 8), labels.long()

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        at = self.index[place]
        return {"img": self.images[at], "label": self.labels[at]}


def load_data(client: int, num_clients: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """The training and the test batches of a client."""
    train, test = (Digits(client, num_clients, test) for test in (False, True))
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=256)


def train(net: nn.Module, batches: DataLoader, epochs: int, lr: float, device: torch.device) -> float:
    """Train the network; the mean loss of the batches."""
    net.to(device).train()
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for batch in batches:
            images, labels = batch["img"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(batches))


@torch.no_grad()
def test(net: nn.Module, batches: DataLoader, device: torch.device) -> tuple[float, float]:
    """Loss and accuracy."""
    net.to(device).eval()
    criterion = nn.CrossEntropyLoss(reduction="sum")
    loss = correct = 0.0
    for batch in batches:
        output, labels = net(batch["img"].to(device)), batch["label"].to(device)
        loss += criterion(output, labels).item()
        correct += (output.argmax(1) == labels).sum().item()
    return loss / len(batches.dataset), correct / len(batches.dataset)
