package enrolment

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"math/big"
	"strings"
	"sync"

	"fleetd/fleet"
)

// claimCodes are the six-digit codes shown by waiting devices. They are indexed by a keyed
// hash, so the duration of a lookup reveals nothing about them.
type claimCodes struct {
	limit int
	key   []byte

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]claimCode
}

type claimCode struct {
	code   string
	device fleet.DeviceID
}

func newClaimCodes(limit int) *claimCodes {
	key := make([]byte, sha256.Size)
	rand.Read(key)
	return &claimCodes{limit: limit, key: key, byHash: make(map[[sha256.Size]byte]claimCode)}
}

func (c *claimCodes) hash(code string) (h [sha256.Size]byte) {
	mac := hmac.New(sha256.New, c.key)
	mac.Write([]byte(code))
	mac.Sum(h[:0])
	return h
}

// issue makes a code for the device. It returns false if too many are in use.
func (c *claimCodes) issue(id fleet.DeviceID) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.byHash) < c.limit {
		n, err := rand.Int(rand.Reader, big.NewInt(1_000_000))
		if err != nil {
			return "", false
		}
		code := fmt.Sprintf("%06d", n)
		if h := c.hash(code); c.byHash[h].code == "" {
			c.byHash[h] = claimCode{code, id}
			return code, true
		}
	}
	return "", false
}

// restore adds a code from the store. It returns false if the code is in use.
func (c *claimCodes) restore(code string, id fleet.DeviceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hash(code)
	if len(c.byHash) >= c.limit || c.byHash[h].code != "" {
		return false
	}
	c.byHash[h] = claimCode{code, id}
	return true
}

func (c *claimCodes) release(code string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byHash, c.hash(code))
}

// device returns the device that shows the code.
func (c *claimCodes) device(code string) (fleet.DeviceID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.byHash[c.hash(code)]
	return found.device, subtle.ConstantTimeCompare([]byte(found.code), []byte(code)) == 1
}

// devices returns every device that shows a code.
func (c *claimCodes) devices() []fleet.DeviceID {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]fleet.DeviceID, 0, len(c.byHash))
	for _, found := range c.byHash {
		ids = append(ids, found.device)
	}
	return ids
}

// cleanCode accepts a code as people write it, with blanks or dashes.
func cleanCode(s string) (string, bool) {
	s = strings.NewReplacer(" ", "", "-", "").Replace(s)
	if len(s) != 6 || strings.Trim(s, "0123456789") != "" {
		return "", false
	}
	return s, true
}
