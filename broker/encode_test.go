package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
)

// A preview shows exactly what the device receives.
func TestEncodedCallIsTheOneThatIsSent(t *testing.T) {
	b, dom := start(t, nil)
	d := connectRaw(t, b, connectPacket{clientID: testClientID(1)})
	d.serve(func(r rpc) string {
		if r.Method != "tools/call" {
			return ""
		}
		return textResult(fmt.Sprintf("%d %s", r.ID, r.Params))
	})
	fleettest.Eventually(t, "an answer to initialize", func() bool { return dom.count("responded") == 1 })
	inv := fleet.Invocation{Tool: "self.audio_speaker.set_volume", Arguments: json.RawMessage(` {"volume": 50}`)}
	fleettest.Eventually(t, "the call that was encoded", func() bool { // a ping may use the id in between
		w, err := b.EncodeCall(d.id, inv)
		if err != nil || !w.NextID || !w.Connected || !strings.Contains(string(w.Message), string(w.Request)) {
			t.Fatalf("%+v, %v", w, err)
		}
		var request rpc
		if err := json.Unmarshal(w.Request, &request); err != nil {
			t.Fatal(err)
		}
		a, err := makeCall(b, d.id, inv.Tool, string(inv.Arguments), deadline, nil)
		return err == nil && a.Text == fmt.Sprintf("%d %s", w.ID, request.Params)
	})
	w, err := b.EncodeCall(testID(2), inv)
	if err != nil || w.NextID || w.Connected || w.ID != 1 {
		t.Errorf("of a device that is not connected: %+v, %v", w, err)
	}
	inv.Tool = `quote"`
	if _, err := b.EncodeCall(d.id, inv); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a name that no device can report errors about: %v", err)
	}
}
