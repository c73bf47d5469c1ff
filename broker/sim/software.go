package sim

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"
)

// Programs for computers play a board too, and behave otherwise than one, as
// py-xiaozhi 2.1 does: their boot poll is short and names no hardware. They
// connect to MQTT when somebody starts to talk, send hello at once, and leave
// MQTT with goodbye, whoever says it. While they are connected they answer MCP,
// with an error code of JSON-RPC, and list no tools for people only.

// silenceLimit is how long a program stays without a message from the server.
const silenceLimit = 2 * time.Minute

// softwareInfo is the body of a program's boot poll. Its hash is that of a key,
// the same in all versions.
func (d *Device) softwareInfo() string {
	return fmt.Sprintf(`{"application": {"version": "%s", "elf_sha256": "%s"}, `+
		`"board": {"type": "%s", "name": "%s", "ip": "192.168.%d.%d", "mac": "%s"}}`,
		d.running().build.version, hex.EncodeToString(digest(0, "key", d.id.mac)), "bread-compact-wifi", d.board.name,
		d.link.ip[0], d.link.ip[1], d.id.mac)
}

// waitForTalks has a conversation whenever somebody talks to the program, until
// ctx ends.
func (d *Device) waitForTalks(ctx context.Context, host string, port int) {
	for {
		var due <-chan time.Time
		if every := d.fleet.options.TalkEvery; every > 0 {
			timer := time.NewTimer(every)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-d.talk:
		case <-due:
		case <-ctx.Done():
			return
		}
		if err := d.converse(ctx, host, port); err != nil && ctx.Err() == nil {
			d.log().Debug("no conversation", "err", err)
		}
	}
}

// converse is one conversation, which is one MQTT session.
func (d *Device) converse(ctx context.Context, host string, port int) error {
	conn, err := d.connect(ctx, host, port)
	if err != nil {
		d.stats().connectFailures.Add(1)
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.hangUp)
	defer stop()
	conn.breakAt = time.Now().Add(d.fleet.scaled(silenceLimit))
	answered := make(chan struct{})
	d.mu.Lock()
	d.session = conversation{hello: answered}
	d.mu.Unlock()
	d.setConn(conn)
	defer d.setConn(nil)
	d.publish([]byte(`{"type": "hello", "version": 3, "features": {"mcp": true}, "transport": "udp", ` +
		`"audio_params": {"format": "opus", "sample_rate": 16000, "channels": 1, "frame_duration": 20}}`))
	if every := d.fleet.options.TalkEvery; every > 0 {
		timer := time.AfterFunc(every/2, d.EndTalk)
		defer timer.Stop()
	}
	return d.receive(conn)
}

// EndTalk closes the audio channel, as the user does. A board stays on MQTT; a
// program leaves it.
func (d *Device) EndTalk() {
	d.closeChannel()
	if d.board.software {
		d.mu.Lock()
		conn := d.conn
		d.mu.Unlock()
		if conn != nil {
			conn.hangUp()
		}
	}
}

// softwareTools are some of py-xiaozhi's.
func softwareTools(b *board) []*tool {
	tools := []*tool{{
		name: "self.application.list_running", description: "List running applications on the system.",
		params: []param{textParam("filter_name").or(argument{})},
		run: func(_ context.Context, _ *Device, _ []argument) (result, error) {
			return result{text: `{"success": true, "total_count": 0, "applications": []}`}, nil
		},
	}}
	for _, t := range commonTools(b) {
		if t.name == "self.audio_speaker.set_volume" {
			tools = append(tools, t)
		}
	}
	return tools
}
