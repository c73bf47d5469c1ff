package server

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"testing"
	"time"

	"fleetd/broker/voice/voicetest"
	"fleetd/fleet/fleettest"
)

// A board in Python, with paho's MQTT and OpenSSL's AES, talks to a voice server
// through fleetd, which calls its tools.
func TestPythonBoardTalks(t *testing.T) {
	t.Parallel()
	const python = "/usr/bin/python3" // Debian's, which has Debian's packages
	if err := exec.Command(python, "-c", "import paho.mqtt.client, cryptography").Run(); err != nil {
		t.Skip("Python's paho or cryptography is missing (Debian: python3-paho-mqtt, python3-cryptography)")
	}
	up := voicetest.Start(voicetest.Options{Secret: "s3cret", Echo: true, MCP: true})
	defer up.Close()
	d := startVoiceServer(t, up.URL(true), nil)
	const mac, id = "02:70:79:00:00:01", "027079000001"
	board := exec.CommandContext(t.Context(), python, "testdata/pyboard.py", d.URL()+"/xiaozhi/ota/", mac, "25")
	var out, errs bytes.Buffer
	board.Stdout, board.Stderr = &out, &errs
	stdin, err := board.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := board.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- board.Wait() }()
	fleettest.EventuallyWithin(t, time.Minute, "the voice server lists the tools", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the board ended: %v\n%s", err, errs.String())
		default:
		}
		return len(up.Sessions()) > 0 && up.Sessions()[0].Listed()
	})
	s := up.Sessions()[0]
	if s.Header.Get("Device-Id") != mac || !slices.Contains(s.Tools(), "self.audio_speaker.set_volume") {
		t.Errorf("device %s, tools %v", s.Header.Get("Device-Id"), s.Tools())
	}
	if a, err := s.Call("self.audio_speaker.set_volume", `{"volume":41}`, time.Minute); err != nil || a.Error != nil {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := s.Call("self.get_device_status", `{}`, time.Minute); err != nil || a.Error == nil {
		t.Errorf("a tool that fails: %+v, %v", a, err)
	}
	stdin.Close()
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	var seen struct {
		Heard, Wrong, Volume int
		MCP, Types           []string
	}
	if err := json.Unmarshal(out.Bytes(), &seen); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	t.Logf("%s", out.String())
	if seen.Heard != 25 || seen.Wrong != 0 || seen.Volume != 41 || !slices.Contains(seen.Types, "tts") {
		t.Errorf("the board: %s", out.String())
	}
	if faults := s.Faults(); len(faults) > 0 {
		t.Error(faults)
	}
	d.eventually("it ended with goodbye, and is on record", func() bool {
		var all list[conversationJSON]
		d.rest("GET", "/conversations?device="+id, nil, &all)
		return len(all.Items) == 1 && all.Items[0].Ended == "device_goodbye" && all.Items[0].Audio.Received == 25 &&
			all.Items[0].Calls == 2
	})
}
