package agent

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"fleetd/broker/edge"
)

// A frame is a message between an edge, which holds the connection of an agent, and the core that
// leads, which serves it. The edge begins with connect, the core answers with admitted. Every frame has
// one of the fields.
type frame struct {
	Connect  *edge.AgentConnect `json:"connect,omitempty"`
	Admitted *admission         `json:"admitted,omitempty"`

	Subscribed   string             `json:"subscribed,omitempty"`
	Unsubscribed string             `json:"unsubscribed,omitempty"`
	Received     *received          `json:"received,omitempty"`
	Publish      *edge.AgentMessage `json:"publish,omitempty"`
	End          edge.AgentEnd      `json:"end,omitempty"`
}

// An admission is the answer to connect.
type admission struct {
	Principal string  `json:"principal,omitempty"`
	Refused   refusal `json:"refused,omitempty"`
}

// A refusal is why an agent was not admitted.
type refusal string

const (
	refusedToken  refusal = "token"
	refusedLimit  refusal = "limit"
	refusedForNow refusal = "unavailable"
)

const (
	// admitTimeout is how long an agent may wait for its CONNACK, while no core leads: usual clients
	// give up after ten seconds.
	admitTimeout   = 6 * time.Second
	connectTimeout = 10 * time.Second // for what follows a connection or a CONNACK
	writeTimeout   = 30 * time.Second
	maxFrame       = 16 << 20 // bytes: a picture of a camera is base64 twice
)

// received is a message of the agent.
type received struct {
	Topic   string `json:"topic"`
	Payload []byte `json:"payload,omitempty"`
	Sender  string `json:"sender,omitempty"`
}

// frames are the frames of a connection: the length in 4 bytes, and JSON.
type frames struct {
	conn io.ReadWriteCloser
	in   *bufio.Reader

	mu sync.Mutex // of writers
}

func newFrames(conn io.ReadWriteCloser) *frames {
	return &frames{conn: conn, in: bufio.NewReader(conn)}
}

// read is for one goroutine at a time.
func (f *frames) read() (m frame, err error) {
	var head [4]byte
	if _, err := io.ReadFull(f.in, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return m, fmt.Errorf("a frame of %d bytes", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(f.in, text); err != nil {
		return m, err
	}
	return m, json.Unmarshal(text, &m)
}

// write ends the connection if it fails.
func (f *frames) write(m frame) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > maxFrame {
		return edge.ErrAgentPacket
	}
	text = append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.conn.(net.Conn); ok {
		_ = c.SetWriteDeadline(time.Now().Add(writeTimeout)) // an error shows at the write
	}
	if _, err := f.conn.Write(text); err != nil {
		_ = f.conn.Close()
		return err
	}
	return nil
}
