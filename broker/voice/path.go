package voice

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"sync"
	"time"

	"fleetd/broker/edge"
	"fleetd/fleet"
)

// A path carries audio between fleetd and the device of a conversation. The rest of a
// conversation is the same for all devices.
type path interface {
	// open is called once, before the device's hello is answered. From then on frames of the
	// device go to conversation.heard.
	open() error
	// hello returns fleetd's hello to the device, with the contents of the upstream's hello. It
	// also works for a conversation that was not opened.
	hello(upstream *serverHello) []byte
	// send sends a frame to the device and reports false if it cannot be sent.
	send(frame []byte, timestamp uint32) bool
	counts() fleet.AudioCounts
	close() // may be called without open
}

// A udpPath is the path of a device on MQTT.
type udpPath struct {
	c       *conversation
	channel *channel // nil before open
}

func (p *udpPath) open() (err error) {
	near, _ := netip.ParseAddr(p.c.device.RemoteAddr) // zero: no address is accepted at once
	p.channel, err = newChannel(p.c.relay.socket, p.c.frame, p.c.opus, near.Unmap(), p.c.heard,
		p.c.badAudio)
	return err
}

// hello returns an all-zero key if the conversation has no audio.
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

// A streamPath is the path of a device on a WebSocket. Its frames are never lost or reordered,
// but may be late.
type streamPath struct {
	c      *conversation
	stream edge.Stream

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

// hello includes the member transport: a device restarts without it.
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

// maxStreamFrame is the longest frame of a device on a WebSocket. It fits 60 ms of uncompressed
// sound at 48 kHz.
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

// smoothed returns the jitter after a packet that was late by the given time (RFC 3550, 6.4.1). A
// pause between utterances is not jitter.
func smoothed(jitter, late time.Duration) time.Duration {
	if late = late.Abs(); late >= lateAudio {
		return jitter
	}
	return jitter + (late-jitter)/16
}

// Hear implements [edge.Conversation].
func (c *conversation) Hear(frame []byte, timestamp uint32) {
	if p, ok := c.path.(*streamPath); ok {
		p.hear(frame, timestamp, time.Now())
	}
}
