package server

import (
	"slices"
	"testing"
)

// The demo simulates conversations: a device talks and hears a tone, and the voice
// server's model sets its volume, which is on record.
func TestDemoTalks(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, func(c *Config) { c.Demo, c.DemoVoice = 2, true })
	type callLine struct {
		Tool, State string
		Actor       struct{ Kind string }
	}
	d.eventually("a call of the voice server's model is on record", func() bool {
		var calls list[callLine]
		d.rest("GET", "/calls", nil, &calls)
		return slices.ContainsFunc(calls.Items, func(c callLine) bool {
			return c.Actor.Kind == "voice" && c.Tool == "self.audio_speaker.set_volume" && c.State == "succeeded"
		})
	})
	d.eventually("the tone was played", func() bool { return d.voice.Load().Stats().AudioDown > 20 })
	d.eventually("the conversation ends", func() bool {
		var all list[conversationJSON]
		d.rest("GET", "/conversations", nil, &all)
		return slices.ContainsFunc(all.Items, func(c conversationJSON) bool {
			return c.Ended == "device_goodbye" && c.Audio.Received == demoUtterance && c.Audio.Sent > 20
		})
	})
}
