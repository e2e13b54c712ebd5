"""Print the claims of a GitHub job's token for Google, but not the token."""  # noqa: INP001

import base64
import json
import os
import urllib.request

url = os.environ["ACTIONS_ID_TOKEN_REQUEST_URL"] + "&audience=claims"
bearer = {"Authorization": "Bearer " + os.environ["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]}
with urllib.request.urlopen(urllib.request.Request(url, headers=bearer)) as response:  # noqa: S310  GitHub's own URL
    token = json.load(response)["value"]
print(base64.urlsafe_b64decode(token.split(".")[1] + "==").decode())
