package sim

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"
)

// Programs for computers also simulate boards, but behave differently, like py-xiaozhi 2.1: their
// boot poll is short and names no hardware. They connect to MQTT when somebody starts to talk,
// send hello at once, and disconnect from MQTT after goodbye from either side. While they are
// connected they answer MCP, with JSON-RPC error codes, and list no tools for people only.

// silenceLimit is how long a program stays connected without a message from the server.
const silenceLimit = 2 * time.Minute

// softwareInfo returns the body of a program's boot poll. Its hash is that of a key, the same in
// all versions.
func (d *Device) softwareInfo() string {
	return fmt.Sprintf(`{"application": {"version": "%s", "elf_sha256": "%s"}, `+
		`"board": {"type": "%s", "name": "%s", "ip": "192.168.%d.%d", "mac": "%s"}}`,
		d.running().build.version, hex.EncodeToString(digest(0, "key", d.id.mac)), "bread-compact-wifi", d.board.name,
		d.link.ip[0], d.link.ip[1], d.id.mac)
}

// waitForTalks holds a conversation whenever somebody talks to the program, until ctx ends.
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

// converse runs one conversation, which is one MQTT session.
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

// EndTalk closes the audio channel, as the user does. A board stays on MQTT; a program
// disconnects.
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

// softwareTools returns some of py-xiaozhi's tools.
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
