package dialect

import (
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"fleetd/fleet"
)

// clientIDPattern is the form of the client ids that fleetd issues, which is the vendor's: group,
// device, and the device's UUID. It excludes names that have a meaning inside mochi, such as
// "inline".
var clientIDPattern = regexp.MustCompile(`^GID_[A-Za-z0-9_.-]{1,32}@@@([a-z0-9._-]{1,64})@@@[A-Za-z0-9._-]{1,64}$`)

// deviceOfClientID returns the device in a client id, or "" if the id does not have this form.
func deviceOfClientID(clientID string) fleet.DeviceID {
	m := clientIDPattern.FindStringSubmatch(clientID)
	if m == nil {
		return ""
	}
	id, err := fleet.ParseBoardID(m[1])
	if err != nil {
		return ""
	}
	return id
}

// UUIDOf returns the part of a client id that is the device's Client-Id, or "" if it has none.
func UUIDOf(clientID string) string {
	i := strings.LastIndex(clientID, "@@@")
	if i < 0 {
		return ""
	}
	return clientID[i+len("@@@"):]
}

// xiaozhiMQTT is xiaozhi over MQTT, with audio over UDP.
type xiaozhiMQTT struct {
	xiaozhi
	up, down    string // topics from the device and to it
	helloAtOnce bool   // the first hello came right after CONNECT
}

var _ Dialect = (*xiaozhiMQTT)(nil)

func xiaozhiOverMQTT(c Connect) (Dialect, fleet.DeviceID) {
	id := deviceOfClientID(c.ClientID)
	if id == "" {
		return nil, ""
	}
	return XiaozhiMQTT(id), id
}

// XiaozhiMQTT returns the dialect of a device with stock firmware over MQTT. The device publishes
// to one topic. Foreign clients, which cannot work without SUBSCRIBE, may subscribe to the topic
// of the messages to them.
func XiaozhiMQTT(id fleet.DeviceID) Dialect {
	return &xiaozhiMQTT{up: "fleet/" + string(id) + "/up", down: "devices/p2p/" + string(id)}
}

func (*xiaozhiMQTT) Opening() Opening { return Opening{AtOnce: true} }

func (d *xiaozhiMQTT) MayPublish(topic string) bool    { return topic == d.up }
func (d *xiaozhiMQTT) MaySubscribe(filter string) bool { return filter == d.down }
func (d *xiaozhiMQTT) Address([]byte) Address          { return Address{Topic: d.down} }

// Boards stay connected between conversations. Programs that simulate a board connect for a
// conversation, send hello at once, and disconnect from MQTT after goodbye: ending the
// conversation at once leaves no time to list or call their tools. Their conversation is kept
// open, without audio, until they disconnect.
//
// The two are distinguished by how their connections end and, until the first has ended, by
// whether the boot poll named any hardware.

const (
	helloAtOnce = 5 * time.Second  // after CONNECT: the connection was made for the conversation
	leaveWithin = 5 * time.Second  // after goodbye: the connection ended with the conversation
	idleBoard   = 30 * time.Second // without hello: the connection was not made for a conversation
)

func (d *xiaozhiMQTT) Keep(g Greeting, h History) time.Duration {
	switch {
	case !g.MCP:
		return 0 // without tools there is no reason to keep it
	case h.Kept:
		return h.Timeout // the answer was lost, or the program began again
	case h.Greeted:
		return 0 // the device stayed after a conversation
	}
	d.helloAtOnce = h.Connected <= helloAtOnce
	if d.helloAtOnce && (h.Habit == HabitLeaves || h.Habit == HabitUnknown && h.Software) {
		return h.Timeout
	}
	return 0
}

func (d *xiaozhiMQTT) Closed(e Ending) Habit {
	switch {
	case !e.Greeted && e.Connected >= idleBoard:
		return HabitStays
	case !e.Goodbye: // it ended before it showed a habit
		return HabitUnknown
	case e.SinceGoodbye > leaveWithin:
		return HabitStays
	case d.helloAtOnce && e.ByDevice:
		return HabitLeaves
	}
	return HabitUnknown
}

func (*xiaozhiMQTT) Answer(host string, port int) (session string, hello []byte) {
	h := newServerHello("udp")
	nonce := append([]byte{1, 0, 0, 0}, random(12)...)
	clear(nonce[8:]) // the device fills in time stamp and sequence number
	h.Version = 3
	h.UDP = &udpChannel{Server: host, Port: port, Encryption: "aes-128-ctr", Key: hex.EncodeToString(random(16)),
		Nonce: hex.EncodeToString(nonce)}
	return h.encode()
}

// Goodbye returns no message for a hello that was not answered: the device gives up after some
// seconds.
func (*xiaozhiMQTT) Goodbye(session string) (message []byte, closes bool) {
	if session == "" {
		return nil, false
	}
	return []byte(`{"type":"goodbye","session_id":"` + session + `"}`), false
}
