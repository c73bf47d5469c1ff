"""A board written from the protocol documents, with third-party libraries.

It polls as at boot, connects to MQTT (paho), says hello, sends frames of audio
over UDP (AES-CTR of cryptography) and hears them back, answers MCP, and says
goodbye when its standard input ends. It prints a line of JSON: what happened.

    pyboard.py OTA_URL MAC FRAMES
"""
import json
import socket
import sys
import threading
import time
import urllib.request
import uuid

import paho.mqtt.client as mqtt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

ota_url, mac, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
client_id = str(uuid.uuid4())
seen = {"heard": 0, "wrong": 0, "volume": None, "mcp": [], "types": []}
lock = threading.Lock()
talking = threading.Event()
heard_all = threading.Event()
session = ""
udp = None


def poll():
    """Section 1: the short body of a program, which names no hardware."""
    body = json.dumps({
        "application": {"version": "2.1.0", "elf_sha256": "9f" * 32},
        "board": {"type": "bread-compact-wifi", "name": "py-xiaozhi", "ip": "192.168.4.27", "mac": mac},
    }).encode()
    request = urllib.request.Request(ota_url, data=body, headers={
        "Device-Id": mac, "Client-Id": client_id, "Content-Type": "application/json",
        "User-Agent": "bread-compact-wifi/py-xiaozhi-2.1.0", "Accept-Language": "zh-CN", "Activation-Version": "1",
    })
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["mqtt"]


TOOLS = [{
    "name": "self.audio_speaker.set_volume", "description": "Set the volume of the audio speaker.",
    "inputSchema": {"type": "object", "properties": {"volume": {"type": "integer", "minimum": 0, "maximum": 100}},
                    "required": ["volume"]},
}, {
    "name": "self.get_device_status", "description": "Provides the status.",
    "inputSchema": {"type": "object", "properties": {}},
}]


def mcp(payload):
    """Section 4: the answer to a request; None for a notification."""
    method, number = payload.get("method", ""), payload.get("id")
    if method.startswith("notifications") or not isinstance(number, int):
        return None
    seen["mcp"].append(method)
    answer = {"jsonrpc": "2.0", "id": number}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "py-xiaozhi", "version": "2.1.0"}}
    elif method == "tools/list":
        answer["result"] = {"tools": TOOLS}
    elif method == "tools/call" and payload["params"]["name"] == "self.audio_speaker.set_volume":
        seen["volume"] = payload["params"]["arguments"]["volume"]
        answer["result"] = {"content": [{"type": "text", "text": "true"}], "isError": False}
    else:
        answer["error"] = {"code": -32601, "message": "Unknown tool or method: " + method}
    return answer


def crypt(key, counter, data):
    c = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    return c.update(data) + c.finalize()


def frame(n):
    """An Opus packet: SILK, wide band, 60 ms, mono; the payload is the test's."""
    return bytes([11 << 3]) + b"%s frame %d " % (mac.encode(), n) + bytes(range(n % 64))


def listen(key):
    """Section 6: packets received over UDP."""
    last = 0
    while True:
        try:
            data = udp.recv(4096)
        except OSError:
            return
        length, sequence = int.from_bytes(data[2:4], "big"), int.from_bytes(data[12:16], "big")
        plain = crypt(key, data[:16], data[16:])
        ok = data[0] == 1 and len(data) == 16 + length and sequence == last + 1 and plain == frame(sequence)
        last = sequence
        with lock:
            seen["heard" if ok else "wrong"] += 1
            if seen["heard"] + seen["wrong"] >= frames:
                heard_all.set()


def speak(key, nonce):
    for n in range(1, frames + 1):
        data = frame(n)
        header = nonce[:2] + len(data).to_bytes(2, "big") + nonce[4:12] + n.to_bytes(4, "big")
        udp.send(header + crypt(key, header, data))
        time.sleep(0.02)


def on_connect(client, userdata, flags, code):
    if code != 0:
        sys.exit("CONNACK %d" % code)
    client.publish(topic, json.dumps({
        "type": "hello", "version": 3, "features": {"mcp": True}, "transport": "udp",
        "audio_params": {"format": "opus", "sample_rate": 16000, "channels": 1, "frame_duration": 60},
    }))


def on_message(client, userdata, message):
    global session, udp
    text = json.loads(message.payload)
    kind = text["type"]
    if kind != "mcp":
        seen["types"].append(kind)
    if kind == "hello":
        session, peer = text["session_id"], text["udp"]
        key, nonce = bytes.fromhex(peer["key"]), bytes.fromhex(peer["nonce"])
        assert text["transport"] == "udp" and len(key) == 16 and len(nonce) == 16 and nonce[0] == 1
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.connect((peer["server"], peer["port"]))
        threading.Thread(target=listen, args=(key,), daemon=True).start()
        client.publish(topic, json.dumps({"session_id": session, "type": "listen", "state": "start", "mode": "auto"}))
        threading.Thread(target=speak, args=(key, nonce), daemon=True).start()
        talking.set()
    elif kind == "mcp":
        answer = mcp(text["payload"])
        if answer:
            client.publish(topic, json.dumps({"session_id": session, "type": "mcp", "payload": answer}))


given = poll()
topic = given["publish_topic"]
host, _, port = given["endpoint"].partition(":")
client = mqtt.Client(client_id=given["client_id"], protocol=mqtt.MQTTv311)
client.username_pw_set(given["username"], given["password"])
client.on_connect, client.on_message = on_connect, on_message
client.connect(host, int(port or 8883), keepalive=given.get("keepalive", 240))
client.loop_start()
if not talking.wait(20):
    sys.exit("no hello within 20 s")
heard_all.wait(30)
sys.stdin.read()
client.publish(topic, json.dumps({"session_id": session, "type": "goodbye"})).wait_for_publish()
client.disconnect()
client.loop_stop()
print(json.dumps(seen))
