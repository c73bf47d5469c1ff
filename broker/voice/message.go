package voice

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// A message is the outer object of a JSON message from either side.
type message struct {
	kind    string          // "type"
	session string          // "session_id"
	payload json.RawMessage // of an mcp message
	command string          // of a system message
}

// parseMessage parses a message, and reports false for a message that a device could read
// differently: the device's parser ignores the case of keys, uses the first of two equal keys,
// and ends a string at a NUL. Such a message could bypass fleetd and reach the device's tools.
func parseMessage(raw []byte) (message, bool) {
	if !json.Valid(raw) || bytes.Contains(raw, []byte(`\u0000`)) {
		return message{}, false
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return message{}, false
	}
	var m message
	types := 0
	for dec.More() {
		t, err := dec.Token()
		key, isKey := t.(string)
		var value json.RawMessage
		if err != nil || !isKey || dec.Decode(&value) != nil {
			return message{}, false
		}
		switch {
		case strings.EqualFold(key, "type"):
			types++
			if key != "type" || json.Unmarshal(value, &m.kind) != nil {
				return message{}, false
			}
		case key == "session_id":
			_ = json.Unmarshal(value, &m.session) // "" if it is not a string
		case key == "payload":
			m.payload = value
		case strings.EqualFold(key, "command"):
			var command string
			if json.Unmarshal(value, &command); command != "" && m.command == "" || command == commandReboot {
				m.command = command
			}
		}
	}
	return m, types == 1 && m.kind != ""
}

// maxMembers is how many bytes of unknown members of a hello are passed through.
const maxMembers = 8 << 10

// otherMembers returns an object's members other than the given names, as text for [withMembers]:
// the parts of a hello that this program does not know. Of two members that a device reads as the
// same, it returns the first, as a device does. It returns none if they are too long or not valid
// UTF-8.
func otherMembers(object []byte, names ...string) (members []byte) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for dec.More() {
		t, err := dec.Token()
		name, isName := t.(string)
		var value json.RawMessage
		if err != nil || !isName || dec.Decode(&value) != nil {
			return members
		}
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			continue
		}
		names = append(names, name)
		quoted, _ := json.Marshal(name)
		if len(members)+len(quoted)+len(value)+2 <= maxMembers && utf8.Valid(value) {
			members = append(append(append(append(members, ','), quoted...), ':'), value...)
		}
	}
	return members
}

// withMembers returns a non-empty object with members appended.
func withMembers(object, members []byte) []byte {
	end := len(object) - 1
	return append(append(object[:end:end], members...), '}')
}

const commandReboot = "reboot"

// withSession returns the message with session id from replaced by to, and otherwise unchanged,
// because the device and the upstream use different session ids.
func withSession(raw []byte, from, to string) []byte {
	if from == "" || from == to {
		return raw
	}
	const key = `"session_id"`
	at := bytes.Index(raw, []byte(key))
	if at < 0 {
		return raw
	}
	rest := raw[at+len(key):]
	value := bytes.TrimLeft(rest, " \t\r\n:")
	quoted, _ := json.Marshal(from)
	if !bytes.HasPrefix(value, quoted) {
		return raw
	}
	start := len(raw) - len(value)
	replacement, _ := json.Marshal(to)
	out := make([]byte, 0, len(raw)+len(replacement))
	out = append(append(out, raw[:start]...), replacement...)
	return append(out, value[len(quoted):]...)
}
