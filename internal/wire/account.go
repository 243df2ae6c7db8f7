package wire

import (
	"strconv"
	"time"
)

// Account is the report of a rank to its launcher at Finalize: what the rank has sent and
// received, and how long it has waited. It travels in the fields of PMI-1's finalize.
type Account struct {
	MessagesSent     int64         `json:"messages_sent"`
	MessagesReceived int64         `json:"messages_received"`
	BytesSent        int64         `json:"bytes_sent"`     // of the data of these messages
	BytesReceived    int64         `json:"bytes_received"` // of the data of these messages
	Waited           time.Duration `json:"waited"`         // for other ranks, in blocking calls
}

// accountField is a field of an Account and its name on the wire.
type accountField struct {
	name  string
	value *int64
}

func (a *Account) fields() [5]accountField {
	return [...]accountField{
		{"messages_sent", &a.MessagesSent}, {"messages_received", &a.MessagesReceived},
		{"bytes_sent", &a.BytesSent}, {"bytes_received", &a.BytesReceived},
		{"waited_ns", (*int64)(&a.Waited)},
	}
}

// PMIFields returns the account as fields of a message.
func (a *Account) PMIFields() (list []PMIField) {
	for _, f := range a.fields() {
		list = append(list, PMIField{f.name, strconv.FormatInt(*f.value, 10)})
	}
	return list
}

// ParseAccount reads an account from a message of a rank. ok is false if a field is missing
// or the account is not valid.
func ParseAccount(m PMIMessage) (a Account, ok bool) {
	for _, f := range a.fields() {
		text, _ := m.Get(f.name)
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return Account{}, false
		}
		*f.value = int64(n)
	}
	return a, a.Valid()
}

// Valid reports whether an account is possible: no value is negative, and there are no bytes
// without messages.
func (a *Account) Valid() bool {
	for _, f := range a.fields() {
		if *f.value < 0 {
			return false
		}
	}
	return (a.MessagesSent > 0 || a.BytesSent == 0) && (a.MessagesReceived > 0 || a.BytesReceived == 0)
}

// Add adds b to a. Both must be valid. If a sum overflows, Add changes nothing and returns
// false.
func (a *Account) Add(b *Account) bool {
	sum, add := *a, b.fields()
	for i, f := range sum.fields() {
		*f.value += *add[i].value
	}
	if !sum.Valid() {
		return false
	}
	*a = sum
	return true
}
