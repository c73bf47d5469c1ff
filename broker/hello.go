package broker

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net"
	"strconv"
	"time"
)

// helloEvery is how often one device's hello is answered.
const helloEvery = time.Second

// A serverHello opens an audio channel.
type serverHello struct {
	Type        string      `json:"type"`
	Version     int         `json:"version,omitempty"`
	Transport   string      `json:"transport"`
	SessionID   string      `json:"session_id"`
	AudioParams audioParams `json:"audio_params"`
	UDP         *udpChannel `json:"udp,omitempty"` // nil over a WebSocket
}

type audioParams struct {
	Format        string `json:"format"`
	SampleRate    int    `json:"sample_rate"`
	Channels      int    `json:"channels"`
	FrameDuration int    `json:"frame_duration"`
}

type udpChannel struct {
	Server     string `json:"server"`
	Port       int    `json:"port"`
	Encryption string `json:"encryption"`
	Key        string `json:"key"`
	Nonce      string `json:"nonce"`
}

// answerHello answers a person who starts to talk to the device. Without a voice
// server there is no message that says so: a device that gets no answer freezes
// for ten seconds. So the channel is opened, to nowhere, and closed at once,
// unless the device would leave MQTT with it: see keepsChannel.
func (c *connection) answerHello(payload []byte, now time.Time) {
	if c.socket != nil {
		c.socket.hello(payload)
	}
	if c.beginConversation(payload, now) {
		return
	}
	if now.Sub(c.lastHello) < helloEvery {
		return
	}
	keep := c.keepsChannel(payload, now)
	c.lastHello = now
	c.broker.stats.hellos.Add(1)
	h := c.newServerHello()
	hello, err := json.Marshal(h)
	if err != nil || c.deliver(hello) != nil {
		return
	}
	if keep {
		c.openChannel(h.SessionID)
		return
	}
	c.sayGoodbye(h.SessionID)
}

func (c *connection) newServerHello() serverHello {
	random := make([]byte, 16+12+8)
	_, _ = rand.Read(random) // never fails
	h := serverHello{Type: "hello", Transport: "websocket", SessionID: "s-" + hex.EncodeToString(random[28:]),
		AudioParams: audioParams{Format: "opus", SampleRate: 24000, Channels: 1, FrameDuration: 60}}
	if c.socket != nil {
		return h
	}
	nonce := append([]byte{1, 0, 0, 0}, random[16:28]...)
	clear(nonce[8:]) // time stamp and sequence number are the device's
	host, port := c.voiceAddr()
	h.Version, h.Transport = 3, "udp"
	h.UDP = &udpChannel{Server: host, Port: port, Encryption: "aes-128-ctr", Key: hex.EncodeToString(random[:16]),
		Nonce: hex.EncodeToString(nonce)}
	return h
}

const discardPort = 9

// voiceAddr is the UDP address in the server hello, to which the device sends its
// voice.
func (c *connection) voiceAddr() (host string, port int) {
	host, text, err := net.SplitHostPort(c.broker.o.VoiceAddr)
	if err == nil {
		if port, err = strconv.Atoi(text); err == nil {
			return host, port
		}
	}
	return hostOf(c.client.Net.Conn.LocalAddr().String()), discardPort
}
