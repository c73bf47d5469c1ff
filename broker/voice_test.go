package broker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetd/broker/edge"
	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// relay is a Voice whose answers the test sets.
type relay struct {
	mu     sync.Mutex
	begun  []edge.VoiceDevice
	heard  []string
	ended  []fleet.ConversationEnd
	refuse bool
}

func (r *relay) Begin(d edge.VoiceDevice, hello []byte) edge.Conversation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse {
		return nil
	}
	r.begun = append(r.begun, d)
	r.heard = append(r.heard, "hello "+string(hello[:8]))
	return relayed{r}
}

func (r *relay) happened() []string { r.mu.Lock(); defer r.mu.Unlock(); return slices.Clone(r.heard) }

type relayed struct{ *relay }

func (c relayed) Receive(kind, session string, payload []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = append(c.heard, kind+" "+session+" "+string(payload[:1]))
	return kind == "goodbye" && session == "ours"
}

func (c relayed) Hear(frame []byte, timestamp uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = append(c.heard, fmt.Sprintf("audio %d %q", timestamp, frame))
}

func (c relayed) End(how fleet.ConversationEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, how)
}

func TestVoiceReceivesConversations(t *testing.T) {
	r := new(relay)
	b, dom := start(t, func(o *options) { o.Voice, o.VisionURL = r, nil })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	fleettest.Eventually(t, "it connected", func() bool { return dom.count("connected") == 1 })

	d.publish(`{"type":"listen","session_id":"old"}`) // before any hello
	d.publish(boardHello)
	d.publish(`{"type":"listen","session_id":"ours"}`)
	d.publish(`{"type":"mcp","payload":{"jsonrpc":"2.0","method":"notifications/x"}}`)
	d.publish(`{"type":"goodbye","session_id":"foreign"}`)
	d.publish(boardHello)
	d.publish(`{"type":"goodbye","session_id":"ours"}`)
	want := []string{`hello {"type":`, "listen ours {", "goodbye foreign {", `hello {"type":`, "goodbye ours {"}
	fleettest.Eventually(t, "all is passed on", func() bool { return len(r.happened()) == len(want) })
	if got := r.happened(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if !slices.Equal(r.ended, []fleet.ConversationEnd{fleet.EndedByNewHello}) {
		t.Errorf("ended %v", r.ended)
	}
	if v := r.begun[0]; v.ID != d.id || v.ClientID == "" || strings.Contains(v.ClientID, "@") ||
		v.RemoteAddr != "127.0.0.1" {
		t.Errorf("%+v", v)
	}
	c := b.registry.connection(d.id)
	fleettest.Eventually(t, "the goodbye is noted", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.channel.goodbye.IsZero()
	})

	if err := r.begun[1].Send([]byte(`{"type":"tts"}`)); err != nil {
		t.Error(err)
	}
	if _, text, err := d.message(); err != nil || text != `{"type":"tts"}` {
		t.Errorf("%q, %v", text, err)
	}
	d.conn.Close()
	<-r.begun[1].Lost
}

// A device that repeats hello costs the voice server only a few conversations.
func TestHellosAreLimited(t *testing.T) {
	r := new(relay)
	b, dom := start(t, func(o *options) { o.Voice = r })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	fleettest.Eventually(t, "it connected", func() bool { return dom.count("connected") == 1 })
	begin := time.Now()
	for range 50 {
		d.publish(boardHello)
	}
	d.publish(`{"type":"last"}`)
	fleettest.Eventually(t, "all are read", func() bool {
		got := r.happened()
		return len(got) > 0 && strings.HasPrefix(got[len(got)-1], "last")
	})
	most := voiceHelloBurst + 1 + int(time.Since(begin)/voiceHelloEvery)
	if n := len(r.begun); n < voiceHelloBurst || n > most {
		t.Errorf("%d conversations of 50 hellos", n)
	}
}

// If there is no voice server for the device, it gets the same answer as without voice.
func TestNoVoiceServerForDevice(t *testing.T) {
	b, dom := start(t, func(o *options) { o.Voice = &relay{refuse: true} })
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	fleettest.Eventually(t, "it connected", func() bool { return dom.count("connected") == 1 })
	if _, goodbye := helloAnswer(t, b, d, boardHello); !goodbye {
		t.Error("no goodbye after hello")
	}
}
