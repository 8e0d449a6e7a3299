"""The client of a server: the Python API, which the command line uses too.

    from gpu_scheduler import Client

    client = Client()
    job = client.submit(["python", "train.py"], gpus=2)
    print(job.result())

Only the standard library is used, and as little of it as possible, so that a command starts fast.
"""
