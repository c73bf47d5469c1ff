package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// systemInfo returns the JSON of 1.3: the body of the boot poll, and the answer of
// self.get_system_info. It is assembled as by the firmware, without escaping, so a quote in the
// SSID breaks it.
func (d *Device) systemInfo() string {
	if d.board.software {
		return d.softwareInfo()
	}
	running := d.running()
	var b strings.Builder
	fmt.Fprintf(&b, `{"version":2,"language":"%s","flash_size":%d,"minimum_free_heap_size":"%s","mac_address":"%s","uuid":"%s","chip_model_name":"%s",`,
		language, d.board.flash, d.board.heap, d.id.mac, d.id.uuid, d.board.chip.name)
	fmt.Fprintf(&b, `"chip_info":{"model":%d,"cores":%d,"revision":2,"features":18},`, d.board.chip.model,
		d.board.chip.cores)
	fmt.Fprintf(&b, `"application":{"name":"xiaozhi","version":"%s","compile_time":"%s","idf_version":"%s","elf_sha256":"%s"},`,
		running.build.version, running.build.compiled, running.build.idf, running.build.elf)
	fmt.Fprintf(&b, `"partition_table": [%s],"ota":{"label":"%s"},`, partitionTable(d.board.partitions), running.label)
	if s := d.board.screen; s.width > 0 {
		fmt.Fprintf(&b, `"display":{"monochrome":%t,"width":%d,"height":%d},`, s.mono, s.width, s.height)
	}
	fmt.Fprintf(&b, `"board":{"type":"%s","name":"%s","manufacturer":"",%s}}`, d.board.name, d.board.name,
		d.link.boardJSON(d.id.mac))
	return b.String()
}

func partitionTable(parts []partition) string {
	var items []string
	for _, p := range parts {
		items = append(items, fmt.Sprintf(`{"label":"%s","type":%d,"subtype":%d,"address":%d,"size":%d}`, p.label, p.kind,
			p.subtype, p.address, p.size))
	}
	return strings.Join(items, ",")
}

// A link is the device's connection to its network. Its values are invented but constant.
type link struct {
	network network
	ssid    string
	rssi    int8
	channel uint8
	ip      [2]uint8 // of 192.168.x.y
	csq     uint8
}

var ssids = [...]string{"lab", "office-2g", "workshop", "家里的WiFi"}

func newLink(n network, seed uint64, mac string, index int, quote bool) link {
	random := digest(seed, "link", mac)
	l := link{
		network: n, ssid: ssids[int(random[0])%len(ssids)], rssi: -int8(40 + random[1]%45), channel: []uint8{1, 6,
			11}[random[2]%3],
		ip: [2]uint8{uint8(4 + index/250), uint8(2 + index%250)}, csq: 9 + random[3]%22,
	}
	if quote {
		l.ssid = `Bob"s net`
	}
	return l
}

func (l link) boardJSON(mac string) string {
	if l.network == cellular {
		return fmt.Sprintf(`"revision":"ML307R-MADEUP","carrier":"EXAMPLE MOBILE","csq":"%d","imei":"000000000000000","iccid":"00000000000000000000","cereg":{"stat":1,"tac":"0000","ci":"00000000","AcT":7}`, l.csq)
	}
	return fmt.Sprintf(`"ssid":"%s","rssi":%d,"channel":%d,"ip":"192.168.%d.%d","mac":"%s"`, l.ssid, l.rssi, l.channel,
		l.ip[0], l.ip[1], mac)
}

func (l link) signal() string {
	if l.network == cellular {
		return [...]string{"very weak", "weak", "medium", "strong"}[min(l.csq/8, 3)]
	}
	switch {
	case l.rssi >= -60:
		return "strong"
	case l.rssi >= -70:
		return "medium"
	}
	return "weak"
}

// statusJSON returns the answer of self.get_device_status (4.5). Unlike the boot poll it goes
// through cJSON, so it is always valid.
func (d *Device) statusJSON() string {
	s := d.State()
	b := fmt.Appendf(nil, `{"audio_speaker":{"volume":%d},"screen":{`, s.Volume)
	if d.board.backlight {
		b = fmt.Appendf(b, `"brightness":%d`, s.Brightness)
	}
	if d.board.lvgl {
		if d.board.backlight {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `"theme":"%s"`, s.Theme)
	}
	b = append(b, '}')
	if d.board.battery {
		b = fmt.Appendf(b, `,"battery":{"level":%d,"charging":%t}`, s.Battery, s.Battery < 20)
	}
	b = append(d.link.appendStatus(append(b, `,"network":`...)), `,"chip":{"temperature":`...)
	b = strconv.AppendFloat(b, float64(s.Temperature), 'g', -1, 32)
	return string(append(b, "}}"...))
}

func (l link) appendStatus(b []byte) []byte {
	if l.network == cellular {
		return fmt.Appendf(b, `{"type":"cellular","carrier":"EXAMPLE MOBILE","signal":"%s"}`, l.signal())
	}
	b = appendQuoted(append(b, `{"type":"wifi","ssid":`...), l.ssid)
	return fmt.Appendf(b, `,"signal":"%s"}`, l.signal())
}
