package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet/fleettest"
)

// makeImage returns an app image that esp_ota_end would accept, of about size bytes.
func makeImage(chip uint16, version string, size int) (image []byte, elf string) {
	image = make([]byte, 24, size+64)
	image[0], image[1], image[23] = 0xE9, 1, 1
	binary.LittleEndian.PutUint16(image[12:], chip)
	data := make([]byte, max(size, 300))
	binary.LittleEndian.PutUint32(data, 0xABCD5432)
	copy(data[16:], version)
	copy(data[48:], "xiaozhi")
	copy(data[80:], "08:33:45")
	copy(data[96:], "Aug  9 2026")
	copy(data[112:], "v6.0.2")
	sum := sha256.Sum256([]byte(version))
	copy(data[144:], sum[:])
	image = binary.LittleEndian.AppendUint32(image, 0x3c000020)
	image = binary.LittleEndian.AppendUint32(image, uint32(len(data)))
	image = append(image, data...)
	xor := byte(0xEF)
	for _, c := range data {
		xor ^= c
	}
	for len(image)%16 != 15 {
		image = append(image, 0)
	}
	image = append(image, xor)
	whole := sha256.Sum256(image)
	return append(image, whole[:]...), hex.EncodeToString(sum[:])
}

// TestUpgrade orders an upgrade through the tool and checks what a server can see of it: the GET,
// the late "true", and the next polls.
func TestUpgrade(t *testing.T) {
	type outcome struct {
		lateTrue bool
		gets     int
		slots    string // of all polls
		elf      string // of the last poll: new, old, other
		mqtt     bool   // on MQTT in the end
	}
	tests := []struct {
		fault string
		board string
		want  outcome
	}{
		{"", "bread-compact-wifi", outcome{false, 1, "ota_0 ota_1", "new", true}},
		{"", "bread-compact-esp32", outcome{true, 0, "factory", "old", true}},
		{"", "xmini-c3", outcome{true, 1, "ota_0", "old", true}}, // an image for another chip
		{"silent-accept", "bread-compact-wifi", outcome{false, 0, "ota_0", "old", true}},
		{"no-get", "bread-compact-wifi", outcome{true, 0, "ota_0", "old", true}},
		{"cut=30", "bread-compact-wifi", outcome{true, 1, "ota_0", "old", true}},
		{"late-true", "bread-compact-wifi", outcome{true, 1, "ota_0", "old", true}},
		{"wrong-build", "bread-compact-wifi", outcome{false, 1, "ota_0 ota_1", "other", true}},
		{"rollback", "bread-compact-wifi", outcome{false, 1, "ota_0 ota_0", "old", true}},
		{"poll-without-mqtt", "bread-compact-wifi", outcome{false, 1, "ota_0 ota_1", "new", false}},
		{"mqtt-without-poll", "bread-compact-wifi", outcome{false, 1, "ota_0", "old", true}},
	}
	for _, tt := range tests {
		t.Run(tt.fault+" "+tt.board, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t)
			image, elf := makeImage(esp32s3.imageID, "2.4.9", 100_000)
			b.files["/fw/1"] = image
			faults, err := ParseFaults(tt.fault)
			if err != nil {
				t.Fatal(err)
			}
			f := b.start(Options{Boards: []string{tt.board}, TimeScale: 0.01, Faults: faults})
			d := f.Device(0)
			b.connected(d)
			before, _ := b.lastPoll()
			b.send(d, 0, toolCall(9, "self.upgrade_firmware", `{"url":"`+b.http.URL+`/fw/1"}`))

			polls := len(strings.Fields(tt.want.slots))
			fleettest.Eventually(t, "the last poll", func() bool { _, n := b.lastPoll(); return n == polls })
			if tt.want.mqtt {
				fleettest.Eventually(t, "MQTT", func() bool {
					return f.Stats().Connects == 2 || tt.want.lateTrue ||
						tt.fault == "silent-accept"
				})
				b.connected(d)
			}
			var got outcome
			if tt.want.lateTrue {
				got.lateTrue = text0(b.next()) == "true"
			}
			if tt.want.elf == "new" {
				fleettest.Eventually(t, "the image is confirmed", func() bool {
					r := d.Firmware()
					return !r.Pending && r.ElfSHA256 == elf
				})
			}
			time.Sleep(150 * time.Millisecond) // nothing more may come
			got.lateTrue = got.lateTrue || len(b.published) > 0
			got.mqtt = d.Connected()
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, r := range b.requests {
				if r == "GET /fw/1" {
					got.gets++
				}
			}
			var slots []string
			for _, p := range b.polls {
				slots = append(slots, p.slot)
			}
			got.slots = strings.Join(slots, " ")
			switch b.polls[len(b.polls)-1].elf {
			case elf:
				got.elf = "new"
			case before.elf:
				got.elf = "old"
			default:
				got.elf = "other"
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if running := d.Firmware(); got.elf == "new" && (running.Pending || running.Version != "2.4.9") {
				t.Errorf("runs %+v", running)
			}
		})
	}
}

// TestOfferedUpgrade lets the OTA answer offer an image: the device installs it
// before it connects to MQTT, and the offer holds for one boot.
func TestOfferedUpgrade(t *testing.T) {
	tests := []struct {
		name, version, force string
		wantPolls            int
	}{
		{"newer", "2.4.9", "0", 2},
		{"older is not due", "2.0.0", "0", 1},
		{"older but forced", "2.0.0", "1", 2},
		{"true does not force", "2.0.0", "true", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend(t)
			image, elf := makeImage(esp32s3.imageID, tt.version, 50_000)
			b.files["/fw/1"] = image
			b.answer = func(p poll) string {
				if p.elf == elf {
					return b.mqttSection(p.id)
				}
				offer := fmt.Sprintf(`,"firmware":{"version":"%s","url":"%s/fw/1","force":%s}}`, tt.version, b.http.URL, tt.force)
				return strings.TrimSuffix(b.mqttSection(p.id), "}") + offer
			}
			f := b.start(Options{Boards: []string{"esp-box-3"}, TimeScale: 0.01})
			b.connected(f.Device(0))
			last, polls := b.lastPoll()
			if polls != tt.wantPolls || (last.elf == elf) != (polls == 2) {
				t.Errorf("%d polls, the last %+v", polls, last)
			}
			if s := f.Stats(); s.Connects != 1 || s.Upgrades != int64(polls-1) {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestUnconfirmedImageRefusesAnother covers protocol 7.4: a second offer at the first boot of a
// new image fails once, and works at the next boot.
func TestUnconfirmedImageRefusesAnother(t *testing.T) {
	b := newBackend(t)
	b.files["/fw/2.4.8"], _ = makeImage(esp32s3.imageID, "2.4.8", 1000)
	b.files["/fw/2.4.9"], _ = makeImage(esp32s3.imageID, "2.4.9", 1000)
	b.answer = func(p poll) string {
		offer := map[string]string{"2.4.8": "2.4.9", "2.4.9": ""}
		next, known := offer[p.version]
		if !known {
			next = "2.4.8"
		}
		if next == "" {
			return b.mqttSection(p.id)
		}
		return strings.TrimSuffix(b.mqttSection(p.id), "}") + fmt.Sprintf(`,"firmware":{"version":"%s","url":"%s/fw/%s"}}`,
			next, b.http.URL, next)
	}
	f := b.start(Options{Boards: []string{"esp-box-3"}, TimeScale: 0.01})
	d := f.Device(0)
	b.connected(d)
	if v := d.Firmware(); v.Version != "2.4.8" || v.Pending || f.Stats().UpgradesFailed != 1 {
		t.Fatalf("after the first boot of the new image: %+v, %+v", v, f.Stats())
	}
	b.send(d, 0, toolCall(1, "self.reboot", `{}`))
	fleettest.Eventually(t, "second upgrade", func() bool {
		return d.Firmware() == Firmware{Version: "2.4.9", ElfSHA256: d.Firmware().ElfSHA256, Slot: "ota_0"}
	})
}

// TestPollFailureRollsBack keeps the OTA endpoint unavailable at the first boot of a new image:
// the device comes online unconfirmed, and a reset rolls it back.
func TestPollFailureRollsBack(t *testing.T) {
	b := newBackend(t)
	image, elf := makeImage(esp32s3.imageID, "2.4.9", 1000)
	b.files["/fw/1"] = image
	b.answer = func(p poll) string {
		if p.elf == elf {
			return ""
		}
		return b.mqttSection(p.id)
	}
	f := b.start(Options{Boards: []string{"esp-box-3"}, TimeScale: 0.0002})
	d := f.Device(0)
	b.connected(d)
	b.send(d, 0, toolCall(1, "self.upgrade_firmware", `{"url":"`+b.http.URL+`/fw/1"}`))
	fleettest.Eventually(t, "MQTT with the credentials of NVS", func() bool { return f.Stats().Connects == 2 })
	if v := d.Firmware(); v.Version != "2.4.9" || !v.Pending {
		t.Fatalf("runs %+v", v)
	}
	b.connected(d)
	time.Sleep(20 * time.Millisecond)
	b.send(d, 0, toolCall(2, "self.reboot", `{}`))
	fleettest.Eventually(t, "rollback", func() bool {
		return f.Stats().Rollbacks == 1 && d.Firmware().Slot == "ota_0" &&
			!d.Firmware().Pending
	})
	if got := f.Stats().PollFailures; got != 10 {
		t.Errorf("%d polls failed", got)
	}
}

func TestBoardsDifferInTools(t *testing.T) {
	names := func(board string, version string) (list []string) {
		b, err := boardByName(board)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range b.toolset(version) {
			list = append(list, tool.name)
		}
		return list
	}
	if slices.Contains(names("xmini-c3", "2.4.2"), "self.screen.snapshot") {
		t.Error("xmini-c3 has no LVGL screen to take a snapshot of")
	}
	if slices.Contains(names("bread-compact-esp32", "2.2.4"), "self.assets.set_download_url") ||
		!slices.Contains(names("bread-compact-esp32", "2.4.2"), "self.assets.set_download_url") {
		t.Error("without an assets partition the tool came with 2.3")
	}
	for _, name := range BoardNames() {
		page, next := listPage(names2tools(t, name), "", true)
		if page == nil || next != "" {
			t.Errorf("%s: the list does not fit a page", name)
		}
	}
}

func names2tools(t *testing.T, board string) []*tool {
	t.Helper()
	b, err := boardByName(board)
	if err != nil {
		t.Fatal(err)
	}
	return b.tools
}
