// Which of the optional parts a kernel has: its roles, its shared memory, its communicator SMs.
#pragma once

namespace pk::parts {

struct nothing {};

template <class K> concept has_loader = requires { &K::loader; };
template <class K> concept has_consumer = requires { &K::consumer; };
template <class K> concept has_storer = requires { &K::storer; };
template <class K> concept has_communicator = requires { &K::communicator; };
template <class K> concept has_shared = requires { typename K::shared; };
template <class K> concept has_comm_shared = requires { typename K::comm_shared; };

template <class K> struct shared_of { using type = nothing; };
template <has_shared K> struct shared_of<K> { using type = typename K::shared; };
template <class K> struct comm_shared_of { using type = nothing; };
template <has_comm_shared K> struct comm_shared_of<K> { using type = typename K::comm_shared; };

template <class K>
constexpr int comm_sms_of() {
  if constexpr (requires { K::comm_sms; }) return K::comm_sms;
  else return 0;
}

}  // namespace pk::parts
