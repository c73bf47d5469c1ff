package sim

import (
	"fmt"
	"strings"
)

const (
	nvsMaxKey     = 15
	nvsMaxString  = 4000
	nvsMaxEntries = 370 // of 32 bytes in a 16 KB partition, less its overhead
)

// nvs is the part of a device's settings that the server writes. It survives restarts, and
// settings that an answer does not name are unchanged.
type nvs struct {
	endpoint, clientID, username, password, topic string
	keepalive                                     int // seconds; 0 until a server sent one
	assetsURL                                     string
	socket                                        socketSettings
}

type socketSettings struct {
	url, token string
	version    int // of binary messages; 0 until a server sent one
}

// save copies the strings and numbers of one section (1.4). The error is the crash caused by a
// bad section.
func (n *nvs) save(section string, members value) error {
	entries := 0
	for k, v := range members.members() {
		if !v.isString() && !v.isNumber() {
			continue
		}
		key := k.text()
		if len(key) > nvsMaxKey {
			return &crashError{fmt.Sprintf("%s.%s: key of more than %d characters", section, key, nvsMaxKey)}
		}
		size := len(v.text())
		if size >= nvsMaxString {
			return &crashError{fmt.Sprintf("%s.%s: value of %d bytes", section, key, size)}
		}
		entries++
		if v.isString() {
			entries += (size + 31) / 32
		}
		if entries > nvsMaxEntries {
			return &crashError{fmt.Sprintf("%s: NVS is full", section)}
		}
		if section == "mqtt" {
			n.set(key, v)
		} else {
			n.setSocket(key, v)
		}
	}
	return nil
}

// set stores the settings that this firmware reads later. A number under a key that is read as a
// string reads as empty, and vice versa (8, 13).
func (n *nvs) set(key string, v value) {
	switch key {
	case "endpoint":
		n.endpoint = v.text()
	case "client_id":
		n.clientID = v.text()
	case "username":
		n.username = v.text()
	case "password":
		n.password = v.text()
	case "publish_topic":
		n.topic = v.text()
	case "keepalive":
		n.keepalive = 0
		if v.isNumber() {
			n.keepalive = v.number()
		}
	}
}

// setSocket stores the settings of the section websocket.
func (n *nvs) setSocket(key string, v value) {
	switch key {
	case "url":
		n.socket.url = v.text()
	case "token":
		n.socket.token = v.text()
	case "version":
		n.socket.version = 0
		if v.isNumber() {
			n.socket.version = v.number()
		}
	}
}

// parseEndpoint parses as StartMqttClient does (2): the host before the first colon, the port
// behind it by stoi.
func parseEndpoint(endpoint string) (host string, port int, err error) {
	host, rest, found := strings.Cut(endpoint, ":")
	if !found {
		return host, 8883, nil
	}
	port, err = stoi(rest)
	if err != nil {
		return "", 0, &crashError{fmt.Sprintf("mqtt.endpoint %q: %v", endpoint, err)}
	}
	return host, port, nil
}
