package voice

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"sync"
	"time"

	"fleetd/broker"
	"fleetd/fleet"
)

// A path is how audio passes between fleetd and the device of a conversation. All
// else of a conversation is the same for all devices.
type path interface {
	// open is called once, before the device's hello is answered: from then on
	// frames of the device go to conversation.heard.
	open() error
	// hello is our hello to the device, with what the upstream's says; also for a
	// conversation that was not opened.
	hello(upstream *serverHello) []byte
	// send sends a frame to the device and reports false if it cannot be sent.
	send(frame []byte, timestamp uint32) bool
	counts() fleet.AudioCounts
	close() // also without open
}

// A udpPath is that of a device on MQTT.
type udpPath struct {
	c       *conversation
	channel *channel // nil before open
}

func (p *udpPath) open() (err error) {
	near, _ := netip.ParseAddr(p.c.device.RemoteAddr) // zero: no packet is believed at once
	p.channel, err = newChannel(p.c.relay.socket, p.c.frame, p.c.opus, near.Unmap(), p.c.heard,
		p.c.badAudio)
	return err
}

// hello of a conversation without audio has a key that nothing knows.
func (p *udpPath) hello(upstream *serverHello) []byte {
	key, nonce := hex.EncodeToString(make([]byte, 16)), "01000000"+hex.EncodeToString(make([]byte, 12))
	if p.channel != nil {
		key, nonce = p.channel.keyHex(), p.channel.nonceHex()
	}
	type udp struct {
		Server     string `json:"server"`
		Port       int    `json:"port"`
		Encryption string `json:"encryption"`
		Key        string `json:"key"`
		Nonce      string `json:"nonce"`
	}
	text, _ := json.Marshal(struct {
		Type      string          `json:"type"`
		Version   int             `json:"version"`
		Transport string          `json:"transport"`
		SessionID string          `json:"session_id"`
		Audio     json.RawMessage `json:"audio_params"`
		UDP       udp             `json:"udp"`
	}{"hello", 3, "udp", p.c.session, upstream.audioParams(),
		udp{p.c.relay.host, p.c.relay.port, "aes-128-ctr", key, nonce}})
	return withMembers(text, upstream.more)
}

func (p *udpPath) send(frame []byte, timestamp uint32) bool { return p.channel.send(frame, timestamp) }

func (p *udpPath) counts() fleet.AudioCounts {
	if p.channel == nil {
		return fleet.AudioCounts{}
	}
	return p.channel.counts()
}

func (p *udpPath) close() {
	if p.channel != nil {
		p.channel.close()
	}
}

// A streamPath is that of a device on a WebSocket. Nothing is lost there, nor
// comes out of order; it may come late.
type streamPath struct {
	c      *conversation
	stream broker.Stream

	mu       sync.Mutex
	opened   bool
	received fleet.AudioCounts
	lastAt   time.Time
}

func (p *streamPath) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = true
	return nil
}

// hello has the member transport: a device that misses it restarts.
func (p *streamPath) hello(upstream *serverHello) []byte {
	text, _ := json.Marshal(struct {
		Type      string          `json:"type"`
		Transport string          `json:"transport"`
		SessionID string          `json:"session_id"`
		Audio     json.RawMessage `json:"audio_params"`
	}{"hello", "websocket", p.c.session, upstream.audioParams()})
	return withMembers(text, upstream.more)
}

func (p *streamPath) send(frame []byte, timestamp uint32) bool {
	return len(frame) > 0 && len(frame) <= maxStreamFrame && p.stream.SendAudio(frame, timestamp)
}

// maxStreamFrame is the longest frame of such a device: 60 ms at 48 kHz that are not
// compressed fit.
const maxStreamFrame = 8 << 10

// hear handles a frame of the device.
func (p *streamPath) hear(frame []byte, timestamp uint32, at time.Time) {
	p.mu.Lock()
	d, good := p.c.frame, len(frame) > 0 && len(frame) <= maxStreamFrame
	if good && p.c.opus {
		d, good = opusDuration(frame)
	}
	opened := p.opened
	if !opened || !good {
		p.received.Refused++
		p.mu.Unlock()
		if opened {
			p.c.badAudio()
		}
		return
	}
	p.received.Received++
	if d > 0 && !p.lastAt.IsZero() {
		p.received.Jitter = smoothed(p.received.Jitter, at.Sub(p.lastAt)-d)
	}
	p.lastAt = at
	p.mu.Unlock()
	p.c.heard(frame, timestamp, at)
}

func (p *streamPath) counts() fleet.AudioCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.received
}

func (p *streamPath) close() {}

// smoothed is the jitter after a packet that came so much later than expected
// (RFC 3550, 6.4.1). Devices pause between what they say; that is not jitter.
func smoothed(jitter, late time.Duration) time.Duration {
	if late = late.Abs(); late >= lateAudio {
		return jitter
	}
	return jitter + (late-jitter)/16
}

// Hear implements [broker.Conversation].
func (c *conversation) Hear(frame []byte, timestamp uint32) {
	if p, ok := c.path.(*streamPath); ok {
		p.hear(frame, timestamp, time.Now())
	}
}
