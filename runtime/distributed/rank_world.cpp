// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/rank_world.h>

#include <string>

#include <millrace/runtime/distributed/tcp.h>

namespace millrace {

std::unique_ptr<RankWorld> RankWorld::join(const std::optional<RankEnvironment>& where, const Connect& connect) {
  if (!where || where->world_size == 1) return nullptr;
  std::unique_ptr<RankWorld> made(new RankWorld);
  made->meeting_ = std::make_unique<Rendezvous>(*where);
  made->communicator_ = connect ? connect(*made->meeting_) : make_tcp_communicator(*made->meeting_);
  made->heartbeat_ = std::make_unique<Heartbeat>(
      *made->meeting_, [ranks = made->communicator_.get()](const std::string& sentence) { ranks->abort(sentence); });
  return made;
}

}  // namespace millrace
