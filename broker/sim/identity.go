package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
)

// macPrefix has the bit of locally administered addresses set, so a real board is never mistaken
// for a virtual one.
var macPrefix = [3]byte{0x02, 0xf1, 0xee}

// An identity is the permanent identity of a device.
type identity struct {
	mac    string // a0:85:e3:11:22:33, the Device-Id header
	uuid   string // the Client-Id header
	serial string // 32 characters from eFuse; empty on boards without
}

func newIdentity(mac string, seed uint64, hasSerial bool) identity {
	id := identity{mac: mac, uuid: uuidFor(seed, mac)}
	if hasSerial {
		id.serial = "SN-" + strings.ToUpper(hex.EncodeToString(digest(seed, "serial", mac))[:28]) + "-"
	}
	return id
}

// firstMAC returns the address of device 0; the others count up from it. If wish is empty, it
// depends on the seed, so two fleets rarely share addresses.
func firstMAC(wish string, seed uint64) (uint64, error) {
	if wish == "" {
		b := append(macPrefix[:], digest(seed, "first mac")[:3]...)
		return macNumber(b), nil
	}
	b, err := net.ParseMAC(wish)
	if err != nil || len(b) != 6 {
		return 0, fmt.Errorf("first MAC %q: want six hex bytes such as 02:f1:ee:00:00:00", wish)
	}
	return macNumber(b), nil
}

func macNumber(b []byte) uint64 {
	return binary.BigEndian.Uint64(append([]byte{0, 0}, b...))
}

// macAt counts within the lower three bytes, so the prefix does not change.
func macAt(first uint64, index int) string {
	n := first&^0xffffff | (first+uint64(index))&0xffffff
	b := binary.BigEndian.AppendUint64(nil, n)
	return net.HardwareAddr(b[2:]).String()
}

func uuidFor(seed uint64, mac string) string {
	b := digest(seed, "uuid", mac)[:16]
	b[6] = b[6]&0x0f | 0x40 // version 4
	b[8] = b[8]&0x3f | 0x80 // variant
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// digest is the only source of all values that look random.
func digest(seed uint64, names ...string) []byte {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, seed)
	for _, name := range names {
		h.Write([]byte(name))
		h.Write([]byte{0})
	}
	return h.Sum(nil)
}

// chance returns a number in [0,1) that depends on the seed and the names alone.
func chance(seed uint64, names ...string) float64 {
	return float64(binary.BigEndian.Uint64(digest(seed, names...))>>11) / (1 << 53)
}
